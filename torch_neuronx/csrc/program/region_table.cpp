// Which regions are kept: a bounded number, those that came by last.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/region.h"

namespace torch_neuronx::program {
namespace {

constexpr size_t kMostRegions = 256;
// Where regions never come again, one of so many new ones is tried.
constexpr size_t kTriedOf = 16;

Description description_of(const Collected& found, const std::vector<size_t>& outputs) {
  Description made{found.members[0].call->core(), found.inputs, {}, outputs};
  for (const Member& member : found.members) {
    const auto& name = member.call->op().operator_name();
    made.calls.push_back({name.name.substr(6), name.overload_name, member.result, member.arguments,
                          member.dtype, member.sizes, member.strides, member.replaces,
                          member.call->called_at});
  }
  return made;
}

Region* known_region(const Collected& found, const std::vector<size_t>& outputs) {
  Start* start = &g_regions.starts[found.members[0].call->core()];
  for (const Member& member : found.members) {
    const auto step = start->next.find(member.words);
    if (step == start->next.end()) return nullptr;
    start = step->second.get();
  }
  for (Region* region : start->regions)
    if (region->description.outputs == outputs) return region;
  return nullptr;
}

// Takes forgotten regions, and beginnings of nothing else, out of the tree; returns whether `start`
// is still needed.
bool prune(Start& start, const std::vector<Region*>& forgotten) {
  std::erase_if(start.regions, [&](Region* region) {
    return std::find(forgotten.begin(), forgotten.end(), region) != forgotten.end();
  });
  std::erase_if(start.next, [&](auto& step) { return !prune(*step.second, forgotten); });
  start.leads_on = std::any_of(start.next.begin(), start.next.end(), [](const auto& step) {
    return step.second->leads_on || step.second->is_ready();
  });
  return !start.regions.empty() || !start.next.empty();
}

// Forgets the half that came by longest ago, but nothing that is being compiled.
void forget_half() {
  std::vector<Region*> oldest;
  for (auto& [number, region] : g_regions.all)
    if (region.state != Region::State::kWanted) oldest.push_back(&region);
  std::sort(oldest.begin(), oldest.end(),
            [](const Region* a, const Region* b) { return a->used < b->used; });
  oldest.resize(std::min(oldest.size(), kMostRegions / 2));
  for (auto& [core, root] : g_regions.starts) prune(root, oldest);
  g_regions.fruitless = std::all_of(oldest.begin(), oldest.end(),
                                    [](const Region* region) { return region->seen < 2; });
  g_regions.stats.forgotten += static_cast<int64_t>(oldest.size());
  for (const Region* region : oldest) {
    if (region->program_object != nullptr) g_regions.unneeded.push_back(region->program_object);
    g_regions.all.erase(region->number);
  }
}

// Whether there is room for one more, after forgetting some if need be.
bool make_room() {
  if (g_regions.fruitless && ++g_regions.since_fruitless % kTriedOf != 0) return false;
  if (g_regions.all.size() < kMostRegions) return true;
  if (g_regions.readers.load() > 1) return false;  // others may hold what would go
  forget_half();
  return g_regions.all.size() < kMostRegions;
}

}  // namespace

Region* region_of(const Collected& found, const std::vector<size_t>& outputs) {
  if (Region* known = known_region(found, outputs)) {
    known->used = ++g_regions.clock;
    return known;
  }
  if (!make_room()) return nullptr;
  Region& region = g_regions.all[g_regions.next_number];
  region.number = g_regions.next_number++;
  region.used = ++g_regions.clock;
  region.description = description_of(found, outputs);
  for (const auto& call : region.description.calls)
    if (call.result == 0)
      region.activity += (region.activity.empty() ? "region: " : ", ") + call.name;
  Start* start = &g_regions.starts[found.members[0].call->core()];
  for (const Member& member : found.members) {
    auto& next = start->next[member.words];
    if (next == nullptr) next = std::make_unique<Start>();
    start = next.get();
    region.beginnings.push_back(start);
    region.kinds.push_back(member.call->settled());
  }
  region.beginnings.pop_back();
  region.calls = start;
  start->regions.push_back(&region);
  return &region;
}

}  // namespace torch_neuronx::program
