"""Random templates, of the language that chat templates use; many are errors, as expressions know nothing of types."""
import itertools
import random

NAMES = ["messages", "tools", "numbers", "floats", "words", "people", "nested", "mapping", "text", "zero", "nothing",
         "yes", "no", "flag", "empty", "missing", "bos_token", "v", "w", "ns", "m"]
STRINGS = ["''", "'a'", "'Abc déf'", "\" x \"", "'a,b,c'", "'name'", "'role'", "'\\n\\t'", "'12'", "'-3.5'", "'ß👋'",
           "'items'", "'\\'\"'", "'%s'", "'{}'"]
NUMBERS = ["0", "1", "2", "-1", "3", "7", "10", "1.5", "0.1", "-2.5", "100", "1e3"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "list", "first", "last", "join", "join(', ')",
           "tojson", "tojson(indent=2)", "string", "int", "float", "abs", "round", "round(1)", "sort", "reverse", "unique",
           "sum", "max", "min", "default('d')", "default('d', true)", "replace('a', 'bb')", "indent", "indent(2, true)",
           "map('upper')", "map(attribute='name')", "select", "reject", "select('string')", "select('defined')",
           "selectattr('name')", "rejectattr('pet')", "selectattr('age', 'gt', 30)", "batch(2)", "slice(2)", "items",
           "dictsort", "wordcount", "truncate(8)", "center(9)", "groupby('city')", "safe", "count", "map('string')",
           "format(1)", "sort(reverse=true)", "sort(attribute='name')", "map(attribute=0)", "map('length')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable",
         "sequence", "true", "false", "odd", "even", "upper", "lower", "callable", "in [1, 'a', none]", "eq 1",
         "equalto('a')", "ne 2", "divisibleby 2", "sameas none", "gt 1", "not none", "not defined"]
METHODS = ["strip()", "lstrip()", "rstrip('c')", "split()", "split(',')", "split(' ', 1)", "rsplit('a', 1)", "upper()",
           "lower()", "title()", "capitalize()", "startswith('A')", "endswith('c')", "replace('b', '')", "find('b')",
           "count('a')", "items()", "keys()", "values()", "get('a')", "get('z', 3)", "join(words)", "format(1, 2)",
           "splitlines()", "isdigit()", "isalpha()", "index('a')", "swapcase()", "zfill(5)", "partition('b')", "append(1)",
           "copy()", "update({})"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "and", "or", "==", "!=", "<", "<=", ">", ">=", "in", "not in"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, values):
        return self.random.choice(values)

    def atom(self):
        kind = self.random.random()
        if kind < 0.45:
            return self.pick(NAMES)
        if kind < 0.7:
            return self.pick(STRINGS)
        if kind < 0.9:
            return self.pick(NUMBERS)
        return self.pick(["true", "false", "none", "[]", "{}", "()", "loop.index", "loop.last", "range(4)", "loop.length",
                          "loop.previtem", "messages[0].content", "people[1]", "ns.x", "mapping.a"])

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        e = lambda: self.expression(depth - 1 - self.random.randrange(2))
        kind = self.random.randrange(14)
        if kind == 0:
            return f"({e()})"
        if kind == 1:
            return f"{e()} {self.pick(BINARY)} {e()}"
        if kind == 2:
            return f"({e()}) {self.pick(BINARY)} ({e()})"
        if kind in (3, 4, 5):
            return f"{e()}|{self.pick(FILTERS)}"
        if kind == 6:
            return f"{e()} is {self.pick(TESTS)}"
        if kind == 7:
            return f"({e()}).{self.pick(METHODS)}"
        if kind == 8:
            return f"{self.atom()}.{self.pick(['name', 'role', 'content', 'a', 'items', 'x', '0'])}"
        if kind == 9:
            return f"{self.atom()}[{e()}]"
        if kind == 10:
            slices = [":2", "1:", "::-1", ":-1", "1:3", "-2:", "::2", ":"]
            return f"({self.pick(NAMES)})[{self.pick(slices)}]"
        if kind == 11:
            return f"[{e()}, {e()}]" if self.random.random() < 0.6 else f"{{{self.pick(STRINGS)}: {e()}, 'k': {e()}}}"
        if kind == 12:
            return f"{e()} if {e()} else {e()}"
        return self.pick(["not ", "-", "+"]) + e()

    def space(self):
        return self.pick(["", "", "", " ", "\n", "\n  ", "  \n", "\t", "\n\n", "text", " é\n"])

    def tag(self, inside):
        left, right = self.pick(["", "", "", "-", "+"]), self.pick(["", "", "", "-", "+"])
        return f"{self.space()}{{%{left} {inside} {right}%}}{self.space()}"

    def body(self, depth, in_loop=False):
        return "".join(self.statement(depth, in_loop) for _ in range(self.random.randrange(1, 4)))

    def statement(self, depth, in_loop):
        kind = self.random.randrange(16 if depth > 0 else 6)
        if kind < 5:
            left, right = self.pick(["", "", "-"]), self.pick(["", "", "-"])
            return f"{self.space()}{{{{{left} {self.expression(2)} {right}}}}}{self.space()}"
        if kind == 5:
            return self.tag(f"set {self.pick(['v', 'w', 'v, w', 'ns.x'])} = {self.expression(2)}")
        inner = lambda loop=in_loop: self.body(depth - 1, loop)
        if kind < 9:
            other = self.tag("elif " + self.expression(1)) + inner() if self.random.random() < 0.3 else ""
            other += self.tag("else") + inner() if self.random.random() < 0.4 else ""
            return self.tag("if " + self.expression(2)) + inner() + other + self.tag("endif")
        if kind < 12:
            test = f" if {self.expression(1)}" if self.random.random() < 0.2 else ""
            control = self.tag(f"if {self.expression(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
            control = control if self.random.random() < 0.2 else ""
            other = self.tag("else") + inner(False) if self.random.random() < 0.2 else ""
            items = self.pick(["messages", "numbers", "words", "people", "mapping.items()", "mapping", "text[:3]", "nested",
                               "range(3)", self.expression(1)])
            target = self.pick(["v", "w", "v", "v, w"])
            return (self.tag(f"for {target} in {items}{test}") + control + inner(True) + other + self.tag("endfor"))
        if kind == 12:
            return self.tag("set v") + inner(False) + self.tag("endset")
        if kind == 13:
            return self.tag(f"macro m(v, w={self.expression(0)})") + inner(False) + self.tag("endmacro") + "{{ m(1) }}"
        if kind == 14:
            return self.tag(f"with v = {self.expression(1)}") + inner() + self.tag("endwith")
        name = self.pick(["filter upper", "filter trim", "generation"])
        return self.tag(name) + inner(False) + self.tag("end" + name.split()[0])

    def template(self):
        return "{% set ns = namespace(x=1) %}" + self.body(2)


def generate(seed):
    for i in itertools.count():
        yield Generator(seed * 1_000_003 + i).template()
