#include "json.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace parquetry {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::optional<std::map<std::string, std::string>> Object() {
    std::map<std::string, std::string> members;
    if (!Take('{')) return std::nullopt;
    if (Take('}')) return members;
    do {
      std::string name, value;
      Space();
      if (!String(&name) || !Take(':') || !Value(&value)) return std::nullopt;
      members[name] = value;
    } while (Take(','));
    if (!Take('}')) return std::nullopt;
    return members;
  }

 private:
  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool Take(char expected) {
    Space();
    if (at_ >= text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  bool Value(std::string* value) {
    Space();
    if (at_ < text_.size() && text_[at_] == '"') return String(value);
    const size_t begin = at_;
    if (!Skip()) return false;
    *value = std::string(text_.substr(begin, at_ - begin));
    return true;
  }

  // Over one value that is not a string: a nested one to its closing bracket, a plain one to the next delimiter.
  bool Skip() {
    const size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        std::string ignored;
        if (!String(&ignored)) return false;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ' ' || c == '\n')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
      if (depth == 0 && (c == '}' || c == ']')) break;
    }
    return depth == 0 && at_ > begin;
  }

  bool String(std::string* out) {
    if (at_ >= text_.size() || text_[at_] != '"') return false;
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        out->push_back(text_[at_++]);
      } else if (!Escape(out)) {
        return false;
      }
    }
    if (at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool Escape(std::string* out) {
    ++at_;
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out->push_back(c);
        return true;
      case 'b':
        out->push_back('\b');
        return true;
      case 'f':
        out->push_back('\f');
        return true;
      case 'n':
        out->push_back('\n');
        return true;
      case 'r':
        out->push_back('\r');
        return true;
      case 't':
        out->push_back('\t');
        return true;
      case 'u':
        return Unicode(out);
      default:
        return false;
    }
  }

  bool Unicode(std::string* out) {
    uint32_t code = 0, low = 0;
    if (!Hex(&code)) return false;
    const bool high = code >= 0xD800 && code < 0xDC00;
    if (high && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      if (!Hex(&low)) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code < 0x80) {
      out->push_back(static_cast<char>(code));
      return true;
    }
    const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    const uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    out->push_back(static_cast<char>(lead[tail] | (code >> (6 * tail))));
    for (int i = tail - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F)));
    return true;
  }

  bool Hex(uint32_t* code) {
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size()) return false;
      const char c = text_[at_];
      const bool digit = c >= '0' && c <= '9';
      const char letter = static_cast<char>(c | 0x20);
      if (!digit && (letter < 'a' || letter > 'f')) return false;
      *code = *code * 16 + static_cast<uint32_t>(digit ? c - '0' : letter - 'a' + 10);
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::map<std::string, std::string>> ParseJsonObject(std::string_view text) {
  return Reader(text).Object();
}

int64_t IntegerMember(const std::map<std::string, std::string>& members, const std::string& name, int64_t otherwise) {
  const auto found = members.find(name);
  if (found == members.end()) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(found->second.c_str(), &end, 10);
  return end != found->second.c_str() && *end == '\0' ? value : otherwise;
}

std::string QuoteJson(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

}  // namespace parquetry
