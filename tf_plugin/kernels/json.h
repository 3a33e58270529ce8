// As much JSON as the protocol's bodies need: read one object, write one string.

#ifndef PARQUETRY_KERNELS_JSON_H_
#define PARQUETRY_KERNELS_JSON_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace parquetry {

// The members of a JSON object: strings unescaped, every other value as its own JSON text. Nothing if `text` is not an
// object.
std::optional<std::map<std::string, std::string>> ParseJsonObject(std::string_view text);

// A member that is an integer; `otherwise` if it is missing or something else.
int64_t IntegerMember(const std::map<std::string, std::string>& members, const std::string& name, int64_t otherwise);

// `text` as a JSON string, with its quotes.
std::string QuoteJson(std::string_view text);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_JSON_H_
