// A decoder is paginated only if masks, positions and tokens are proven to be what they must be; else it stays as it
// is, and the ledger says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/passes/paginate_decoder.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// As GroupQueryAttention has it: lengths are sums of the mask, and keys and values are put behind the past.
constexpr char kScattered[] = R"(
  %lengths = reduce_sum %attention_mask {axes = [1]}
  %before = sub %lengths, %length
  %first = equal %all, %length
  %start = where %first, %zero, %before
  %start4 = reshape %start {shape = [B, 1, 1, 1]}
  %count4 = reshape %count {shape = [1, 1, S, 1]}
  %to = add %count4, %start4
  %batch = dims {values = [B], scalar = true}
  %b = range %zero, %batch, %one
  %b4 = reshape %b {shape = [B, 1, 1, 1]}
  %b5 = expand %b4 {shape = [B, 1, S, 1]}
  %h5 = expand %zero {shape = [B, 1, S, 1]}
  %to5 = expand %to {shape = [B, 1, S, 1]}
  %places = concat %b5, %h5, %to5 {axis = 3}
  %none = constant {value = 0} : f32[]
  %room = expand %none {shape = [B, 1, S, 8]}
  %key_room = concat %past_key_values.0.key, %room {axis = 2}
  %value_room = concat %past_key_values.0.value, %room {axis = 2}
  %present.0.key = scatter_nd %key_room, %places, %k
  %present.0.value = scatter_nd %value_room, %places, %v
)";

TEST(Paginate, MasksInManySpellings) {
  for (const char* mask : {
           "  %mask = greater_equal %i, %j",
           "  %m1 = add %i, %one\n  %mask = less %j, %m1",
           "  %m1 = greater %j, %i\n  %mask = not %m1",
           "  %m1 = less_equal %j, %i\n  %t = constant {value = true} : bool[]\n  %mask = and %m1, %t",
           "  %m1 = less_equal %j, %i\n  %h = constant {value = -3.4e38} : f32[]\n  %z = constant {value = 0} : f32[]\n"
           "  %mask = where %m1, %z, %h",
           "  %m1 = greater %j, %i\n  %m2 = cast %m1 {to = f32}\n  %h = constant {value = -100000} : f32[]\n"
           "  %mask = mul %m2, %h",
           // A window of 3, as where a sliding model looks.
           "  %m1 = less_equal %j, %i\n  %w = constant {value = 3} : i64[]\n  %m2 = sub %i, %w\n  %m3 = greater %j, "
           "%m2\n"
           "  %mask = and %m1, %m3",
       }) {
    SCOPED_TRACE(mask);
    ExpectSameLogits({.mask = mask});
  }
  // What the caller says of padding is true of every token.
  ExpectSameLogits({.cache = true,
                    .mask = "  %m1 = less_equal %j, %i\n  %m2 = cast %attention_mask {to = bool}\n"
                            "  %m3 = reshape %m2 {shape = [B, 1, 1, P + S]}\n  %mask = and %m1, %m3"});
}

TEST(Paginate, SaysWhatStoppedIt) {
  ExpectRefused({.mask = "  %mask = less %j, %i"}, "expected a causal mask");
  ExpectRefused({.mask = "  %m1 = add %i, %one\n  %mask = less_equal %j, %m1"}, "expected a causal mask");
  ExpectRefused({.mask = "  %mask = greater_equal %j, %i"}, "expected a causal mask");
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = -10} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %mask = where %m1, %z, %h"},
                "expected a causal mask");
  ExpectRefused({.mix = "  %mixed = reduce_mean %o {axes = [1], keep_dims = true}"}, "expected axes of features");
  ExpectRefused({.mix = "  %mixed = cumsum %o {axis = 1}"}, "line `cumsum`");
  ExpectRefused({.mix = "  %s = softmax %o {axis = 1}\n  %mixed = identity %s"}, "expected an axis of features");
  ExpectRefused(
      {.mix = "  %t = reshape %o {shape = [B, S*2, 8]}\n  %u = neg %t\n  %mixed = reshape %u {shape = [B, S, 16]}"},
      "expected a shape that keeps the axes of tokens");
}

TEST(Paginate, NamesBiases) {
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = -3.4e38} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %m2 = where %m1, %z, %h\n"
                         "  %jf = cast %j {to = f32}\n  %distances = mul %jf, @slopes\n"
                         "  %mask = add %m2, %distances",
                 .weights = "weight @slopes: f32[1, 2, 1, 1] = \"f#s\"\n"},
                "found %mask: f32[1, 2, S, S], a bias that %mask adds, expected a causal mask");
}

TEST(Paginate, TokensDoNotMix) {
  // From [S, B, 16] to [B, S, 16] without a transpose: other tokens.
  ExpectRefused({.mix = "  %t = transpose %o {perm = [1, 0, 2]}\n  %u = neg %t\n"
                        "  %mixed = reshape %u {shape = [B, S, 16]}"},
                "expected tokens in front of all other axes");
  // The length of a step is not that of a sequence.
  ExpectRefused({.mix = "  %len = dims {values = [S], scalar = true}\n  %lenf = cast %len {to = f32}\n"
                        "  %mixed = mul %o, %lenf"},
                "expected what does not depend on how many tokens there are");
  // A weight that each token has for itself is none.
  ExpectRefused({.mix = "  %w = reduce_sum %o {axes = [0, 1]}\n  %mixed = rms_norm %o, %w"},
                "expected axes of features");
}

// A table that is cut where the sequence ends, and used otherwise than row by row.
TEST(Paginate, TablesOfTheSequenceAreForRows) {
  ExpectRefused({.mix = R"(
  %zeros = constant {value = [0]} : i64[1]
  %ends = reshape %all {shape = [1]}
  %cut = slice_by @scales, %zeros, %ends, %zeros
  %sum = reduce_sum %cut {axes = [0]}
  %mixed = mul %o, %sum
)",
                 .weights = "weight @scales: f32[64, 16] = \"f#c\"\n"},
                "expected rows of it by position");
}

// What looks like a causal mask, or like a position, and is none.
TEST(Paginate, ProofsHaveNoHoles) {
  // One row for all queries.
  ExpectRefused({.mask = "  %m0 = less_equal %j, %i\n  %z1 = constant {value = [0]} : i64[1]\n"
                         "  %e1 = constant {value = [1]} : i64[1]\n  %ax = constant {value = [2]} : i64[1]\n"
                         "  %mask = slice_by %m0, %z1, %e1, %ax"},
                "expected a causal mask");
  // The last position, counted from the end.
  ExpectRefused({.mask = "  %minus = constant {value = -1} : i64[]\n  %last = gather %pos, %minus\n"
                         "  %l1 = add %last, %one\n  %i2 = add %i, %l1\n  %mask = less_equal %j, %i2"},
                "expected a causal mask");
  // Halves become 0 as integers.
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = 0.5} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %m2 = where %m1, %h, %z\n"
                         "  %m3 = cast %m2 {to = i64}\n  %mask = cast %m3 {to = bool}"},
                "expected a causal mask");
  // As many features as a sequence has tokens.
  ExpectRefused({.mix = "  %sl = slice %o {axis = 2, start = [0], end = [S]}\n"
                        "  %su = reduce_sum %sl {axes = [2], keep_dims = true}\n  %mixed = mul %o, %su"},
                "expected features of known sizes");
  // A window of no keys.
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %m2 = greater %j, %i\n  %mask = and %m1, %m2"},
                "expected a causal mask");
  // One column for all keys.
  ExpectRefused({.cache = true,
                 .mask = "  %m0 = less_equal %j, %i\n  %z1 = constant {value = [0]} : i64[1]\n"
                         "  %e1 = constant {value = [1]} : i64[1]\n  %ax = constant {value = [3]} : i64[1]\n"
                         "  %m1 = slice_by %m0, %z1, %e1, %ax\n  %m2 = greater_equal %j, %zero\n"
                         "  %mask = and %m1, %m2"},
                "expected a causal mask");
  // Of two numbers that f32 rounds to the same one, neither is more.
  ExpectRefused({.mask = "  %c = constant {value = 16777216} : i64[]\n  %ic = add %i, %c\n  %jc = add %j, %c\n"
                         "  %if = cast %ic {to = f32}\n  %jf = cast %jc {to = f32}\n"
                         "  %mask = less_equal %jf, %if"},
                "expected a causal mask");
  // Where both of two masks hide, the sum is lower than where one does.
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = -100000} : f32[]\n"
                         "  %w = constant {value = 3} : i64[]\n  %iw = sub %i, %w\n  %m2 = greater %j, %iw\n"
                         "  %z = constant {value = 0} : f32[]\n  %ma = where %m1, %z, %h\n  %mb = where %m2, %z, %h\n"
                         "  %s = add %ma, %mb\n  %m3 = equal %s, %h\n"
                         "  %mask = not %m3"},
                "expected a causal mask");
  // Sums along two axes are those along two, not of a diagonal.
  ExpectRefused({.mask = "  %d = equal %i, %j\n  %dn = cast %d {to = i64}\n  %s1 = cumsum %dn {axis = 2}\n"
                         "  %s2 = cumsum %s1 {axis = 3}\n  %d2 = cast %s2 {to = bool}\n  %m1 = less_equal %j, %i\n"
                         "  %mask = and %m1, %d2"},
                "expected a causal mask");
  // A position that wraps is no position, but an op on tokens like others.
  ExpectSameLogits({.mix = "  %c = constant {value = 253} : i64[]\n  %p1 = add %pos, %c\n"
                           "  %pb = cast %p1 {to = u8}\n  %pi = cast %pb {to = i64}\n  %p3 = sub %pi, %c\n"
                           "  %p5 = cast %p3 {to = f32}\n  %small = constant {value = 0.001} : f32[]\n"
                           "  %p6 = mul %p5, %small\n  %p7 = reshape %p6 {shape = [1, S, 1]}\n"
                           "  %mixed = mul %o, %p7"});
}

TEST(Paginate, KeysAreScatteredBehindThePast) {
  ExpectSameLogits({.cache = true, .caches = kScattered});
  // All at one place, or at another one.
  for (const auto& [right, wrong] : {std::pair("add %count4, %start4", "add %start4, %start4"),
                                     std::pair("sub %lengths, %length", "sub %lengths, %one")}) {
    ExpectRefused({.cache = true, .caches = absl::StrReplaceAll(kScattered, {{right, wrong}})},
                  "expected what does not depend on how many tokens there are");
  }
}

// Rows of a table by position, of which the first two are for something else.
TEST(Paginate, PositionsMayBeShifted) {
  const Decoder d = {.mix =
                         "  %two = constant {value = [2]} : i64[1]\n  %shifted = add %pos, %two\n"
                         "  %row = gather @learned, %shifted\n  %row1 = reshape %row {shape = [1, S, 16]}\n"
                         "  %mixed = add %o, %row1",
                     .weights = "weight @learned: f32[66, 16] = \"f#l\"\n"};
  ExpectSameLogits(d);
  std::unique_ptr<Model> model = Parse(d);
  Paginated(model.get());
  EXPECT_EQ(model->dims.at("P"), 4);  // pages of 16 for 64 positions
}

}  // namespace
}  // namespace llmc
