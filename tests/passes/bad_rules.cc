// Case 0 compiles; each other case must not. CMakeLists.txt says what the compiler must complain about.
#include "passes/rule.h"

namespace llmc {

constexpr auto kRules = Rules(
#if CASE == 0
    Rule("good").Find("%y = add %x, %z").Replace("%y = add %z, %x").Example("%x: f32[2]; %z: f32[2]")
#elif CASE == 1
    Rule("bad").Find("%y = ad %x, %z").Replace("%y = add %x, %z").Example("%x: f32[2]; %z: f32[2]")
#elif CASE == 2
    Rule("bad").Find("%y, %u = add %x, %z").Replace("%y = add %x, %z").Example("%x: f32[2]; %z: f32[2]")
#elif CASE == 3
    Rule("bad").Find("%y = add %x").Replace("%y = neg %x").Example("%x: f32[2]")
#elif CASE == 4
    Rule("bad").Find("%y = rms_norm %x, %w {epsilon = $e}").Replace("%y = neg %x").Example("%x: f32[2]; %w: f32[2]")
#elif CASE == 5
    Rule("bad").Find("%y = add %x, %z").Replace("%y = add %x, %q").Example("%x: f32[2]; %z: f32[2]")
#elif CASE == 6
    Rule("bad").Find("%y = neg %x").Replace("%y = cast %x {to = $t}").Example("%x: f32[2]")
#elif CASE == 7
    Rule("bad").Find("%y = add %x, %z").Replace("%y = add %z, %x")
#elif CASE == 8
    Rule("bad").Find("%y = neg %x\n%y = neg %y").Replace("%y = neg %x").Example("%x: f32[2]")
#endif
);

}  // namespace llmc
