// Makes tensors of another library over memory of this process, by DLPack's exchange interface. Needs the interpreter lock.
//
// The structures are those of DLPack 1; Python's functions come as pointers, so that one library fits every version of
// Python. Tensors over one object, such as the region of a batch, share a reference to it. It is dropped, under the
// interpreter lock, with the last of them; the others are freed without the lock.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

struct Device {
  int32_t type, number;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Values {
  void* data;
  Device device;
  int32_t axes;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Managed {
  uint32_t major, minor;
  void* context;
  void (*deleter)(Managed*);
  uint64_t flags;
  Values values;
};

constexpr int32_t CPU = 1;

using ToObject = int (*)(Managed*, void** object);

struct Python {
  void* (*new_list)(int64_t count);
  int (*set_item)(void* list, int64_t place, void* item);  // takes over the reference to the item
  void* (*no_memory)();
  void (*add_reference)(void* object);
  void (*drop_reference)(void* object);
  int (*take_lock)();
  void (*release_lock)(int state);
  int (*is_running)();  // false from the moment at which the interpreter begins to end
};

// What the tensors of one call share if their memory has one owner.
struct Shared {
  std::atomic<int64_t> left;
  void* owner;
  Python python;
};

// One tensor's layout: four numbers, then its shape.
struct Layout {
  int64_t owner, code, bits, axes;
  int64_t shape[];
};

struct Tensor {
  Managed managed;
  Shared* shared;
  bool* is_deleted;  // set while the library makes the tensor
  int64_t numbers[];  // the shape, then the strides
};

const Layout* after(const Layout* layout) {
  return reinterpret_cast<const Layout*>(layout->shape + layout->axes);
}

void drop(Shared* shared, int64_t count) {
  if (shared->left.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  const Python& python = shared->python;
  if (python.is_running()) {
    const int state = python.take_lock();
    python.drop_reference(shared->owner);
    python.release_lock(state);
  }
  std::free(shared);
}

void delete_tensor(Managed* managed) {
  Tensor* tensor = reinterpret_cast<Tensor*>(managed);
  Shared* shared = tensor->shared;
  if (tensor->is_deleted) *tensor->is_deleted = true;
  std::free(tensor);
  drop(shared, 1);
}

Tensor* new_tensor(const Layout* layout, char* data, Shared* shared) {
  const int64_t axes = layout->axes;
  auto* tensor = static_cast<Tensor*>(std::malloc(sizeof(Tensor) + 2 * axes * sizeof(int64_t)));
  if (!tensor) return nullptr;
  int64_t* shape = tensor->numbers;
  int64_t* strides = shape + axes;
  int64_t step = 1;
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    shape[axis] = layout->shape[axis];
    strides[axis] = step;
    step *= shape[axis] ? shape[axis] : 1;
  }
  const DataType dtype{static_cast<uint8_t>(layout->code), static_cast<uint8_t>(layout->bits), 1};
  const Values values{data, {CPU, 0}, static_cast<int32_t>(axes), dtype, shape, strides, 0};
  tensor->managed = Managed{1, 0, nullptr, delete_tensor, 0, values};
  tensor->shared = shared;
  tensor->is_deleted = nullptr;
  return tensor;
}

int64_t place_of(const char* places, int64_t number) {
  int64_t place;
  __builtin_memcpy(&place, places + number * sizeof(place), sizeof(place));
  return place;
}

// Whether each tensor lies in the first `size` bytes, and its strides are numbers of 64 bits.
bool fit(const Layout* layout, int64_t count, int64_t size, const char* places) {
  for (int64_t i = 0; i < count; ++i, layout = after(layout)) {
    int64_t bytes = layout->bits / 8;
    bool is_empty = false;
    for (int64_t axis = 0; axis < layout->axes; ++axis) {
      const int64_t length = layout->shape[axis];
      is_empty |= length == 0;
      if (length < 0 || __builtin_mul_overflow(bytes, length ? length : 1, &bytes)) return false;
    }
    if (is_empty) bytes = 0;
    const int64_t place = place_of(places, i);
    if (place < 0 || bytes > size || place > size - bytes) return false;
  }
  return true;
}

}  // namespace

// Returns a list of `count` tensors. Tensor `i` is at `base + places[i] + number * steps[i]`, and keeps `owners[owner]` alive,
// as its layout says; the layouts lie one after another. `places` need not be aligned. Returns an empty list if a tensor
// would not lie in the first `size` bytes from `base`, where `size` is not negative; or null, with Python's error set, if
// the library refuses a tensor or memory runs out.
extern "C" __attribute__((visibility("default"))) void* parquetry_tensors(
    const Python* python, ToObject to_object, void* const* owners, int64_t owner_count, const int64_t* layouts,
    int64_t count, const char* base, int64_t size, const char* places, const int64_t* steps, int64_t number) {
  if (size >= 0 && !fit(reinterpret_cast<const Layout*>(layouts), count, size, places)) return python->new_list(0);
  void* list = python->new_list(count);
  if (!list) return nullptr;
  auto** shared = static_cast<Shared**>(std::calloc(owner_count + 1, sizeof(Shared*)));
  bool done = shared != nullptr;
  for (int64_t each = 0; done && each < owner_count; ++each) {
    void* place = std::malloc(sizeof(Shared));
    if (!(done = place != nullptr)) break;
    shared[each] = new (place) Shared{{1}, owners[each], *python};  // one for this function
    python->add_reference(owners[each]);
  }
  const auto* layout = reinterpret_cast<const Layout*>(layouts);
  for (int64_t i = 0; done && i < count; ++i, layout = after(layout)) {
    const int64_t offset = place_of(places, i) + number * (steps ? steps[i] : 0);
    Tensor* tensor = new_tensor(layout, const_cast<char*>(base) + offset, shared[layout->owner]);
    if (!(done = tensor != nullptr)) break;
    shared[layout->owner]->left.fetch_add(1, std::memory_order_relaxed);
    void* object = nullptr;
    bool is_deleted = false;
    tensor->is_deleted = &is_deleted;
    if (to_object(&tensor->managed, &object)) {  // the error is set
      if (!is_deleted) delete_tensor(&tensor->managed);
      python->drop_reference(list);
      list = nullptr;
      break;
    }
    tensor->is_deleted = nullptr;
    done = python->set_item(list, i, object) == 0;
  }
  if (!done && list) {
    python->drop_reference(list);
    list = python->no_memory();
  }
  for (int64_t each = 0; shared && each < owner_count && shared[each]; ++each) drop(shared[each], 1);
  std::free(shared);
  return list;
}
