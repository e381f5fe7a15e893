"""Writes what the tests of chat templates expect, by jinja2 as transformers sets it up.

  make_expected.py constructs                        constructs.txt -> constructs.json
  make_expected.py real FOLDER                       conversations.json and FOLDER/*.jinja -> real.json
  make_expected.py random COUNT SEED FILE            random templates -> FILE, in the form of constructs.json

Needs the packages jinja2 and transformers (5.17), of which nothing but utils/chat_template_utils.py is used.
"""
import copy
import hashlib
import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
TIME = "2026-03-01 14:05:09.000123"  # what strftime_now shows, UTC


class FrozenTime(chat_template_utils.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(TIME)


chat_template_utils.datetime = FrozenTime


def render(template, messages=(), tools=None, documents=None, add_generation_prompt=False, **variables):
    """The text and the generation blocks; or the error, None in place of both."""
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        text, blocks = chat_template_utils._render_with_assistant_indices(
            compiled, messages=list(messages), tools=tools, documents=documents,
            add_generation_prompt=add_generation_prompt, **variables)
        text.encode()
        return text, [list(block) for block in blocks], None
    except Exception as error:  # whatever a template can raise
        return None, None, f"{type(error).__name__}: {error}"


def case(name, template, variables):
    text, blocks, error = render(template, **copy.deepcopy(variables))  # the filter indent changes lists
    result = {"name": name, "template": template}
    if error is None:
        result["expected"] = text
        if blocks:
            result["generation"] = blocks
    else:
        result["error"] = error
    return result


def read_constructs():
    """Yields (name, template). A template begins behind its line "=== name" and ends before the next."""
    name, lines = None, []
    for line in (HERE / "constructs.txt").read_text().split("\n") + ["=== "]:
        if line.startswith("=== "):
            if name is not None:
                yield name, "\n".join(lines)
            name, lines = line[4:], []
        else:
            lines.append(line)


def write_json(path, cases, **more):
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in cases)
    head = "".join(f'"{key}": {json.dumps(value, ensure_ascii=False)},\n' for key, value in more.items())
    pathlib.Path(path).write_text("{" + head + '"cases": [\n' + lines + "\n]}\n")


def constructs():
    variables = json.loads((HERE / "variables.json").read_text())
    write_json(HERE / "constructs.json", [case(name, text, variables) for name, text in read_constructs()])


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def real(folder):
    """Digests in place of texts, which are long: of the whole, and six digits of each line to name the first that differs."""
    conversations = json.loads((HERE / "conversations.json").read_text())
    cases = []
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        template = path.read_bytes().decode()
        for conversation in conversations:
            text, _, error = render(template, **conversation["input"])
            one = {"template": path.name, "conversation": conversation["name"]}
            if error is None:
                lines = "".join(digest(line)[:6] for line in text.split("\n"))
                one.update(sha256=digest(text), lines=lines)
            else:
                one["error"] = error
            cases.append(one)
    write_json(HERE / "real.json", cases)


def random_cases(count, seed, path):
    import random_templates

    variables = json.loads((HERE / "variables.json").read_text())
    cases = []
    for i, template in enumerate(random_templates.generate(int(seed))):
        one = case(f"random {i}", template, variables)
        if " at 0x" in one.get("expected", "").lower():  # an address in memory
            continue
        if "error" in one and sum("error" in other for other in cases) * 4 > len(cases):
            continue  # most are errors, of which a quarter is enough
        cases.append(one)
        if len(cases) == int(count):
            break
    write_json(path, cases)
    print(sum("error" in one for one in cases), "of", len(cases), "templates are errors in jinja2")


if __name__ == "__main__":
    jinja2.clear_caches()
    {"constructs": constructs, "real": real, "random": random_cases}[sys.argv[1]](*sys.argv[2:])
