#include "home.h"

#include <string>

#include "absl/status/status.h"

namespace parquetry {
namespace {

constexpr char kContainer[] = "parquetry";
constexpr char kHome[] = "home";

class Home : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return kHome; }
};

}  // namespace

void MarkHome(tensorflow::ResourceMgr* resources) {
  Home* home = nullptr;
  const absl::Status status = resources->LookupOrCreate<Home>(kContainer, kHome, &home, [](Home** made) {
    *made = new Home;
    return absl::OkStatus();
  });
  if (status.ok()) home->Unref();
}

bool IsHome(tensorflow::ResourceMgr* resources) {
  Home* home = nullptr;
  if (resources == nullptr) return true;
  if (!resources->Lookup<Home>(kContainer, kHome, &home).ok()) return false;
  home->Unref();
  return true;
}

}  // namespace parquetry
