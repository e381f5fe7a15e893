// None of these rules may compile. CMakeLists.txt says what the compiler must complain about, in this order.
#include "passes/driver/rule.h"

namespace llmc {

constexpr auto kUnknownOp =
    Rules(Rule("bad").Find("%y = ad %x, %z").Replace("%y = add %x, %z").Example("%x: f32[2]; %z: f32[2]"));
constexpr auto kResults =
    Rules(Rule("bad").Find("%y, %u = add %x, %z").Replace("%y = add %x, %z").Example("%x: f32[2]; %z: f32[2]"));
constexpr auto kOperands = Rules(Rule("bad").Find("%y = add %x").Replace("%y = neg %x").Example("%x: f32[2]"));
constexpr auto kAttribute = Rules(
    Rule("bad").Find("%y = rms_norm %x, %w {epsilon = $e}").Replace("%y = neg %x").Example("%x: f32[2]; %w: f32[2]"));
constexpr auto kUnboundName =
    Rules(Rule("bad").Find("%y = add %x, %z").Replace("%y = add %x, %q").Example("%x: f32[2]; %z: f32[2]"));
constexpr auto kUnboundAttribute =
    Rules(Rule("bad").Find("%y = neg %x").Replace("%y = cast %x {to = $t}").Example("%x: f32[2]"));
constexpr auto kNoExample = Rules(Rule("bad").Find("%y = add %x, %z").Replace("%y = add %z, %x"));
constexpr auto kDefinedTwice =
    Rules(Rule("bad").Find("%y = neg %x\n%y = neg %y").Replace("%y = neg %x").Example("%x: f32[2]"));

}  // namespace llmc
