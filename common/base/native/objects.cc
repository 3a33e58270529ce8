// Makes Python objects from runs of bytes. Needs the interpreter lock.
//
// Python's functions come as pointers, so that one library fits every version of Python.

#include <cstdint>

namespace {

struct Python {
  void* (*new_list)(int64_t count);
  int (*set_item)(void* list, int64_t place, void* item);  // takes over the reference to the item
  void* (*new_text)(const char* bytes, int64_t count, const char* errors);
  void* (*new_bytes)(const char* bytes, int64_t count);
  void (*add_reference)(void* object);
  void (*drop_reference)(void* object);
  void* none;
};

}  // namespace

// Returns a new list of `count` objects: run `i` of `data` as text if `is_text`, else as bytes; None where `valid` is
// given and 0. Run `i` ends where run `i + 1` begins, at `offsets[i + 1]`. Returns null, with Python's error set, if a run is
// not UTF-8 or memory runs out.
extern "C" __attribute__((visibility("default"))) void* parquetry_objects(const Python* python, const int64_t* offsets,
                                                                          const char* data, const uint8_t* valid,
                                                                          int64_t count, int64_t is_text) {
  void* list = python->new_list(count);
  if (!list) return nullptr;
  for (int64_t i = 0; i < count; ++i) {
    void* item = python->none;
    if (valid && !valid[i]) {
      python->add_reference(item);
    } else {
      const char* begin = data + offsets[i];
      const int64_t size = offsets[i + 1] - offsets[i];
      item = is_text ? python->new_text(begin, size, nullptr) : python->new_bytes(begin, size);
    }
    if (!item || python->set_item(list, i, item)) {
      python->drop_reference(list);
      return nullptr;
    }
  }
  return list;
}
