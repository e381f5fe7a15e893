// Hostile templates end in an error, within the limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/chat/chat_template.h"

namespace llmc {
namespace {

using testing::HasSubstr;

absl::Status StatusOf(const std::string& text, const ChatInput& input = {}, const TemplateLimits& limits = {}) {
  const auto parsed = ChatTemplate::Parse(text, "t.jinja", {.limits = limits});
  return parsed.ok() ? (*parsed)->Render(input).status() : parsed.status();
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// What grows without end meets any limit: small ones take less time.
constexpr TemplateLimits kSmall = {.steps = 1'000'000, .memory_bytes = 32 << 20};

void ExpectRefused(const std::string& text, const std::string& message, const TemplateLimits& limits = {}) {
  const absl::Status status = StatusOf(text, {}, limits);
  EXPECT_FALSE(status.ok()) << text.substr(0, 200);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text.substr(0, 200);
  EXPECT_THAT(std::string(status.message()), HasSubstr("t.jinja:"));
}

TEST(TemplateLimits, Time) {
  ExpectRefused("{% for i in range(10**9) %}{% endfor %}", "more than 100000 numbers in a range");
  for (const std::string body :
       {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set x = 'a,' * 100000 %}{% for i in range(100000) %}{{ x.split(',')|length }}{% endfor %}"}) {
    ExpectRefused(body, "more than 1000000 steps", kSmall);
  }
  for (const std::string body :
       {"{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x|replace('b', 'c')|length }}{% endfor %}",
        "{% set x = [0] * 100000 %}{% for i in range(100000) %}{{ 1 in x }}{% endfor %}",
        "{% set x = 'a' * 100000 %}{% for i in range(100000) %}{{ x|upper|length }}{% endfor %}"}) {
    ExpectRefused(body, "more than 20000000 steps");
  }
}

TEST(TemplateLimits, Memory) {
  for (const TemplateLimits& limits : {TemplateLimits(), kSmall}) {
    ExpectRefused("{{ 'x' * 10**9 }}", "bytes of memory", limits);
    ExpectRefused("{{ 'x' * 10**18 }}", "bytes of memory", limits);
    ExpectRefused("{{ [1] * 10**17 }}", "bytes of memory", limits);
    ExpectRefused("{{ 'a'.ljust(10**12) }}", "bytes of memory", limits);
    ExpectRefused("{{ '%1000000000000s' % 'a' }}", "bytes of memory", limits);
    ExpectRefused("{{ '{:>1000000000000}'.format('a') }}", "bytes of memory", limits);
    ExpectRefused("{{ '{:.999999999f}'.format(1.5) }}", "digits of precision", limits);
    ExpectRefused("{{ '{:99999999999999999999}'.format(1.5) }}", "too large", limits);
    ExpectRefused("{{ [1]|tojson(indent=10**12) }}", "bytes of memory", limits);
    ExpectRefused("{{ 'a'|indent(10**12) }}", "bytes of memory", limits);
    ExpectRefused("{{ [1]|batch(10**12, 0)|list }}", "bytes of memory", limits);
  }
  ExpectRefused("{{ [1]|slice(10**12)|list }}", "more than", kSmall);
  ExpectRefused("{% set x = 'a' * 1000 %}{{ x|replace('a', x)|replace('a', x) }}", "more than", kSmall);
  ExpectRefused("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                "more than", kSmall);
  const std::string doubled =
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
  ExpectRefused(doubled, "more than", kSmall);
  ExpectRefused(doubled, "more than");
  ExpectRefused("{% set x = 'a' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}", "bytes of output");
}

TEST(TemplateLimits, Depth) {
  ExpectRefused("{{ " + Repeated("(", 100000) + "1" + Repeated(")", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ " + Repeated("[", 100000) + Repeated("]", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ " + Repeated("{1:", 100000) + "1" + Repeated("}", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ " + Repeated("-", 100000) + "1 }}", "levels of nesting");
  ExpectRefused("{{ " + Repeated("not ", 100000) + "1 }}", "levels of nesting");
  ExpectRefused("{{ 1" + Repeated(" + 1", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ a" + Repeated(".a", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ a" + Repeated("|e", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ a" + Repeated("()", 100000) + " }}", "levels of nesting");
  ExpectRefused("{{ " + Repeated("1 if 1 else ", 50000) + "1 }}", "levels of nesting");
  ExpectRefused(Repeated("{% if 1 %}", 50000), "levels of nesting");
  ExpectRefused(Repeated("{% for a in b %}", 50000), "levels of nesting");
  ExpectRefused("{% set " + Repeated("(", 100000) + "a" + Repeated(")", 100000) + " = 1 %}", "levels of nesting");
}

TEST(TemplateLimits, DepthOfWhatRuns) {
  ExpectRefused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "inside each other");
  ExpectRefused("{% macro m(caller) %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", "inside each other");
  ExpectRefused("{% macro m(a=m()) %}{% endmacro %}{{ m() }}", "");
  ExpectRefused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "inside each other");
  // Values in each other, which are also freed one in the other.
  const std::string loop = "{% for i in range(99999) %}{% set ns.x = ";
  for (const std::string wrapped : {"[ns.x]", "(ns.x,)", "{1: ns.x}", "[ns.x]|map('string')", "{1: ns.x}.items()",
                                    "joiner(ns.x)", "cycler(ns.x)", "({1: ns.x}).get", "[ns.x]|batch(1)"}) {
    ExpectRefused("{% set ns = namespace(x=[]) %}" + loop + wrapped + " %}{% endfor %}", "levels of nesting");
  }
  ExpectRefused(
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for j in [ns.x] %}{% set ns.x = loop %}"
      "{% endfor %}{% endfor %}",
      "levels of nesting");
}

TEST(TemplateLimits, WhatHoldsItself) {
  EXPECT_TRUE(StatusOf("{% set ns = namespace() %}{% set ns.self = ns %}{% set ns.list = [ns, [ns]] %}").ok());
  EXPECT_TRUE(StatusOf("{% set ns = namespace() %}{% macro m() %}{% endmacro %}{% set ns.m = m %}").ok());
  ExpectRefused("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", "levels of nesting");
  ExpectRefused("{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns.self|tojson }}", "not JSON serializable");
}

TEST(TemplateLimits, DepthOfTheConversation) {
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = nlohmann::ordered_json::array({deep});
  ChatInput input;
  input.variables["deep"] = deep;
  EXPECT_THAT(std::string(StatusOf("{{ deep }}", input).message()), HasSubstr("levels of nesting"));
}

TEST(TemplateLimits, WhatPythonHides) {
  ExpectRefused("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe");
  ExpectRefused("{{ range.__globals__.x }}", "no attribute");
  ExpectRefused("{{ '{0.__class__.__mro__}'.format('') }}", "unsafe");
  ExpectRefused("{{ ''|attr('__class__')|attr('__mro__') }}", "unsafe");
}

TEST(TemplateLimits, Sizes) {
  ExpectRefused(std::string((1 << 20) + 1, 'a'), "bytes of template");
  ExpectRefused("\n{{ 9223372036854775808 }}", "64 bits");
  ExpectRefused("{{ 9223372036854775807 + 1 }}", "64 bits");
  ExpectRefused("{{ 10 ** 30 }}", "64 bits");
  ExpectRefused("{{ (-9223372036854775807 - 1) // -1 }}", "64 bits");
  ExpectRefused("{{ '99999999999999999999'|int }}", "64 bits");
  ExpectRefused("a\xff", "UTF-8");
  ExpectRefused("{{ '\\ud800' }}", "no character");
  EXPECT_TRUE(StatusOf("{{ 9223372036854775807 }}{{ (-9223372036854775807 - 1) % -1 }}").ok());
}

TEST(TemplateLimits, ErrorsNameTheLine) {
  EXPECT_EQ(StatusOf("a\nb\n{{ x.y }}").message(), "t.jinja:3: 'x' is undefined");
  EXPECT_EQ(StatusOf("a\n{% if %}").message(), "t.jinja:2: unexpected the end of the tag");
  EXPECT_EQ(StatusOf("\n\n{{ raise_exception('no') }}").message(),
            "t.jinja:3: the template refuses the conversation: no");
}

}  // namespace
}  // namespace llmc
