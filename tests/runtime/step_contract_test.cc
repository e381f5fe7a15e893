// What a language model's step asks for, and which program of a plan runs it.
#include "base/step_contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/step_programs.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three tokens of one sequence, from its position 3 on, and one of another.
TEST(StepContract, ALayoutGivesTheValuesOfEveryRole) {
  const std::vector<int32_t> ids = {7, 8, 9, 5}, pages = {6, 2, 4};
  StepLayout layout(/*page_sizes=*/{4}, /*table_width=*/3);
  layout.Add(
      {.ids = absl::MakeConstSpan(ids).subspan(0, 3), .position = 3, .pages = {absl::MakeConstSpan(pages.data(), 2)}},
      2);
  layout.Add(
      {.ids = absl::MakeConstSpan(ids).subspan(3, 1), .position = 0, .pages = {absl::MakeConstSpan(&pages[2], 1)}}, 1);
  const auto values = [&](StepRole role) { return InputValues(role, layout); };
  EXPECT_THAT(values(StepRole::kTokenIds), ElementsAre(7, 8, 9, 5));
  EXPECT_THAT(values(StepRole::kPositions), ElementsAre(3, 4, 5, 0));
  EXPECT_THAT(values(StepRole::kSlots), ElementsAre(6 * 4 + 3, 2 * 4, 2 * 4 + 1, 4 * 4));
  EXPECT_THAT(values(StepRole::kPageTable), ElementsAre(6, 2, 0, 4, 0, 0));
  EXPECT_THAT(InputShape(StepRole::kPageTable, layout), ElementsAre(2, 3));
  EXPECT_THAT(values(StepRole::kLengths), ElementsAre(6, 1));
  EXPECT_THAT(values(StepRole::kStarts), ElementsAre(0, 3, 4));
  EXPECT_THAT(values(StepRole::kRows), ElementsAre(1, 2, 3));
}

TEST(StepContract, TheTableIsInOrder) {
  int next = 1;
  for (const StepRoleInfo& role : StepRoles()) {
    EXPECT_EQ(static_cast<int>(role.role), next++) << role.name;
    EXPECT_EQ(&InfoOf(role.role), &role) << role.name;
    EXPECT_EQ(StepRoleRef::Parse(role.name)->role, role.role);
    ASSERT_NE(role.element, nullptr) << role.name;
  }
}

std::vector<StepInputSpec> PagedInputs() {
  return {{"a", "token_ids", "i32", {"T"}}, {"b", "positions", "i32", {"T"}},
          {"c", "slots", "i32", {"T"}},     {"d", "page_table", "i32", {"S", "P"}},
          {"e", "lengths", "i32", {"S"}},   {"f", "starts", "i32", {"S + 1"}},
          {"g", "rows", "i32", {"R"}}};
}

TEST(StepContract, IsReadFromRolesAlone) {
  const auto contract = StepContract::Read(PagedInputs());
  ASSERT_TRUE(contract.ok()) << contract.status();
  EXPECT_TRUE(contract->is_paged());
  EXPECT_EQ(contract->NameOf(StepRole::kPageTable), "d");
  EXPECT_EQ(contract->RoleOf("g"), StepRole::kRows);
  EXPECT_EQ(contract->RoleOf("ids"), StepRole::kNone);
  EXPECT_EQ(contract->SizeOf(StepAxis::kToken), "T");
  EXPECT_EQ(contract->SizeOf(StepAxis::kSequence), "S");
  EXPECT_EQ(contract->SizeOf(StepAxis::kSequenceEdge), "S + 1");
  EXPECT_EQ(contract->SizeOf(StepAxis::kRow), "R");
  EXPECT_EQ(contract->SizeOf(StepAxis::kPage), "P");

  for (size_t i = 0; i < 7; ++i) {  // each of them is needed
    std::vector<StepInputSpec> inputs = PagedInputs();
    inputs[i].role.clear();
    EXPECT_FALSE(StepContract::Read(inputs)->is_paged());
    inputs.erase(inputs.begin() + static_cast<int64_t>(i));
    EXPECT_FALSE(StepContract::Read(inputs)->is_paged());
    EXPECT_THAT(StepContract::Read(inputs)->NameOf(PagedInputs()[i].role == "rows" ? StepRole::kRows : StepRole::kNone),
                IsEmpty());
  }
  std::vector<StepInputSpec> inputs = PagedInputs();
  inputs[2].role = "slots(full)";
  EXPECT_THAT(std::string(StepContract::Read(inputs).status().message()), HasSubstr("which pool they are for"));
  inputs[3].role = "page_table(full)";
  EXPECT_TRUE(StepContract::Read(inputs)->is_paged());
  EXPECT_EQ(StepContract::Read(inputs)->PoolOf("full"), 0u);
  EXPECT_EQ(StepContract::Read(inputs)->PoolOf("N"), std::nullopt);
  inputs[3].role = "page_table(full";
  EXPECT_THAT(std::string(StepContract::Read(inputs).status().message()), HasSubstr("expected the name of a pool"));
}

TEST(StepContract, TellsPoolsApart) {
  std::vector<StepInputSpec> inputs = PagedInputs();
  inputs[2].role = "slots(N)";
  inputs[3].role = "page_table(N)";
  inputs.push_back({.name = "more", .role = "slots(N8)", .dtype = "i32", .shape = {"T"}});
  EXPECT_FALSE(StepContract::Read(inputs)->is_paged()) << "the second pool has no page table";
  inputs.push_back({.name = "table", .role = "page_table(N8)", .dtype = "i32", .shape = {"S", "P"}});
  const auto contract = StepContract::Read(inputs);
  ASSERT_TRUE(contract.ok()) << contract.status();
  EXPECT_TRUE(contract->is_paged());
  EXPECT_THAT(contract->pools(), ElementsAre("N", "N8"));
  EXPECT_EQ(contract->NameOf(StepRole::kPageTable, 0), "d");
  EXPECT_EQ(contract->NameOf(StepRole::kPageTable, 1), "table");
  EXPECT_EQ(contract->PoolOf("N8"), 1u);
  EXPECT_EQ(contract->PoolOf("M"), std::nullopt);
  EXPECT_EQ(contract->PoolOfInput("more"), 1u);
  EXPECT_EQ(contract->PoolOfInput("d"), 0u);

  const std::vector<int32_t> ids = {1, 2}, pages = {5, 6}, windowed = {0, 9, 7};
  StepLayout layout(/*page_sizes=*/{4, 2}, /*table_width=*/3);
  layout.Add({.ids = ids, .position = 3, .pages = {pages, windowed}}, 1);
  EXPECT_THAT(InputValues(StepRole::kSlots, layout, 0), ElementsAre(5 * 4 + 3, 6 * 4));
  EXPECT_THAT(InputValues(StepRole::kSlots, layout, 1), ElementsAre(9 * 2 + 1, 7 * 2));
  EXPECT_THAT(InputValues(StepRole::kPageTable, layout, 0), ElementsAre(5, 6, 0));
  EXPECT_THAT(InputValues(StepRole::kPageTable, layout, 1), ElementsAre(0, 9, 7));
}

plan::Program BoundedProgram(const std::vector<std::pair<std::string, int64_t>>& bounds, bool decode) {
  plan::Program program;
  program.set_decode(decode);
  for (const auto& [name, max] : bounds) {
    plan::DimBound* bound = program.add_bounds();
    bound->set_name(name);
    bound->set_max(max);
  }
  return program;
}

TEST(ChooseProgram, TakesTheFirstThatIsForTheStep) {
  const plan::Program one = BoundedProgram({{"T", 1}, {"S", 1}}, true),
                      eight = BoundedProgram({{"T", 8}, {"S", 8}}, true),
                      few = BoundedProgram({{"T", 16}, {"S", 4}}, false),
                      all = BoundedProgram({{"T", 64}, {"S", 32}}, false);
  const std::vector<const plan::Program*> programs = {&one, &eight, &few, &all};
  const auto choose = [&](int64_t t, int64_t s, bool decodes) {
    return ChooseProgram(programs, {{"T", t}, {"S", s}, {"P", 99}}, decodes);
  };
  EXPECT_EQ(choose(1, 1, true), 0u);
  EXPECT_EQ(choose(1, 1, false), 2u) << "one token of a prompt";
  EXPECT_EQ(choose(2, 2, true), 1u);
  EXPECT_EQ(choose(8, 8, true), 1u);
  EXPECT_EQ(choose(9, 9, true), 3u) << "too many sequences for the third";
  EXPECT_EQ(choose(16, 4, false), 2u);
  EXPECT_EQ(choose(17, 4, false), 3u);
  EXPECT_EQ(choose(100, 100, false), 3u) << "the last takes the rest";
  EXPECT_EQ(ChooseProgram(programs, {}, true), 0u) << "nothing speaks against it";
  EXPECT_EQ(ChooseProgram({&all}, {{"T", 1}, {"S", 1}}, true), 0u);
}

TEST(PlaceOf, FindsInputsWithRolesAndTheFirstOutput) {
  plan::EntryPoint entry;
  for (const StepInputSpec& input : PagedInputs()) {
    plan::TensorSpec* to = entry.add_inputs();
    to->set_name(input.name);
    to->set_role(input.role);
    to->set_dtype(input.dtype);
    for (const std::string& dim : input.shape) to->add_shape(dim);
  }
  entry.add_output_values("%y");
  const auto contract = ContractOf(entry);
  ASSERT_TRUE(contract.ok()) << contract.status();
  EXPECT_EQ(PlaceOf("%a", *contract, entry), "%a");
  EXPECT_EQ(PlaceOf("%d", *contract, entry), "%d");
  EXPECT_EQ(PlaceOf("%y", *contract, entry), "logits");
  EXPECT_EQ(PlaceOf("%ids", *contract, entry), "");
  plan::Manifest manifest;
  *manifest.add_entry_points() = entry;
  EXPECT_FALSE(PagedContractOf(manifest).ok()) << "it has no states";
  manifest.add_states();
  EXPECT_TRUE(PagedContractOf(manifest).ok());
  manifest.mutable_entry_points(0)->mutable_inputs(0)->clear_role();
  EXPECT_FALSE(PagedContractOf(manifest).ok());
}

}  // namespace
}  // namespace llmc
