#include "element_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace parquetry {

using protocol::Role;
using protocol::TensorEntry;

namespace {

// Below this size, copying is cheaper than counting a reference, and the copy does not hold the
// slot.
constexpr size_t kLeastAliasedBytes = 512;

// The memory of a tensor that lies inside a batch. Keeps the batch alive.
class BatchBuffer : public tensorflow::TensorBuffer {
 public:
  BatchBuffer(const char* data, size_t bytes, std::shared_ptr<const Batch> batch)
      : TensorBuffer(const_cast<char*>(data)), bytes_(bytes), batch_(std::move(batch)) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool GetAllocatedBytes(size_t* out_bytes) const override {
    *out_bytes = bytes_;
    return true;
  }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  // An op must not reuse this memory for its output: that would hold the slot longer than the
  // element lives.
  bool OwnsMemory() const override { return false; }

 private:
  const size_t bytes_;
  const std::shared_ptr<const Batch> batch_;
};

tensorflow::DataType ToDataType(uint16_t code) {
  using protocol::DType;
  switch (static_cast<DType>(code)) {
    case DType::kBool:
      return tensorflow::DT_BOOL;
    case DType::kInt8:
      return tensorflow::DT_INT8;
    case DType::kInt16:
      return tensorflow::DT_INT16;
    case DType::kInt32:
      return tensorflow::DT_INT32;
    case DType::kInt64:
      return tensorflow::DT_INT64;
    case DType::kUint8:
      return tensorflow::DT_UINT8;
    case DType::kUint16:
      return tensorflow::DT_UINT16;
    case DType::kUint32:
      return tensorflow::DT_UINT32;
    case DType::kUint64:
      return tensorflow::DT_UINT64;
    case DType::kFloat16:
      return tensorflow::DT_HALF;
    case DType::kFloat32:
      return tensorflow::DT_FLOAT;
    case DType::kFloat64:
      return tensorflow::DT_DOUBLE;
  }
  return tensorflow::DT_INVALID;
}

constexpr char kRaggedType[] = "RaggedTensorVariant";

// Returns a scalar variant that holds a ragged tensor. TensorFlow makes it, because it compares types by an address in its
// own library.
const tensorflow::Tensor& EmptyRagged() {
  static const tensorflow::Tensor* const made = [] {
    tensorflow::TensorProto proto;
    proto.set_dtype(tensorflow::DT_VARIANT);
    proto.mutable_tensor_shape();
    tensorflow::VariantTensorDataProto* const held = proto.add_variant_val();
    held->set_type_name(kRaggedType);
    tensorflow::Tensor(tensorflow::DT_INT64, tensorflow::TensorShape({0})).AsProtoTensorContent(held->add_tensors());
    auto* const tensor = new tensorflow::Tensor;
    if (!tensor->FromProto(proto)) *tensor = tensorflow::Tensor();
    return tensor;
  }();
  return *made;
}

// Parses "<dtype>:<axes>" of a ragged component into its values.
bool ParseValues(const std::string& dtype, const std::string& axes, Component* values) {
  int number = 0;
  if (!absl::SimpleAtoi(dtype, &number) || !tensorflow::DataType_IsValid(number)) return false;
  std::vector<int64_t> sizes = {-1};
  for (const auto& text : absl::StrSplit(axes, ',', absl::SkipEmpty())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size < 0) return false;
    sizes.push_back(size);
  }
  values->kind = Component::Kind::kValues;
  values->dtype = static_cast<tensorflow::DataType>(number);
  return tensorflow::PartialTensorShape::MakePartialShape(sizes.data(), static_cast<int>(sizes.size()), &values->shape).ok();
}

}  // namespace

absl::Status Component::Parse(const std::string& text, tensorflow::DataType dtype,
                              const tensorflow::PartialTensorShape& shape, Component* out) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  static const char* const kNames[] = {"dense", "string", "array", "values", "splits", "ragged"};
  const auto name = parts.size() < 2 ? std::end(kNames) : std::find(std::begin(kNames), std::end(kNames), parts[1]);
  const bool has_axis = name != std::end(kNames) && parts[1] == "splits";
  const bool has_values = name != std::end(kNames) && parts[1] == "ragged";
  Component values;
  if (name == std::end(kNames) || parts.size() != (has_values ? 4u : has_axis ? 3u : 2u) ||
      !absl::SimpleAtoi(parts[0], &out->field) || out->field < 0 ||
      (has_axis && (!absl::SimpleAtoi(parts[2], &out->axis) || out->axis < 0)) ||
      (has_values && !ParseValues(parts[2], parts[3], &values))) {
    return absl::InvalidArgumentError(absl::StrCat("component: expected '<field>:<kind>', got '", text, "'."));
  }
  out->kind = static_cast<Kind>(name - std::begin(kNames));
  out->dtype = dtype;
  out->shape = shape;
  if (has_values) {
    Component splits;
    splits.kind = Kind::kSplits;
    splits.dtype = tensorflow::DT_INT64;
    splits.field = values.field = out->field;
    out->parts = {splits, values};
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::Attach(std::shared_ptr<const Batch> batch) {
  // If a message with several elements arrives when few slots are left, each element is copied.
  // Keeping one element then holds neither a slot nor the other elements.
  const bool single = batched_ && batch->num_elements() == 1;
  may_alias_ = single || !batch->scarce();
  batch_ = single && batch->scarce() ? batch->CopyOut() : std::move(batch);
  entries_.assign(field_names_.size() * protocol::kRoles, nullptr);
  offsets_.clear();
  for (const TensorEntry& entry : batch_->tensors()) {
    if (entry.field >= field_names_.size()) {
      return absl::InternalError(
          absl::StrCat("sidecar batch: expected ", field_names_.size(), " fields, got field ", entry.field, "."));
    }
    if (static_cast<Role>(entry.role) == Role::kValid) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch for field '", field_names_[entry.field],
                       "': expected no null, got one. TensorFlow has no nulls: set a policy with nulls(...), or "
                       "leave these rows out with where(...)."));
    }
    entries_[entry.field * protocol::kRoles + entry.role] = &entry;
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::Build(int64_t element, std::vector<tensorflow::Tensor>* out) {
  out->reserve(components_.size());
  for (const Component& component : components_) {
    tensorflow::Tensor tensor;
    absl::Status status;
    switch (component.kind) {
      case Component::Kind::kDense:
        status = Dense(component, element, &tensor);
        break;
      case Component::Kind::kString:
        status = String(component, element, &tensor);
        break;
      case Component::Kind::kArray:
      case Component::Kind::kValues:
        status = Ragged(component, element, &tensor);
        break;
      case Component::Kind::kSplits:
        status = Splits(component, element, &tensor);
        break;
      case Component::Kind::kRagged:
        status = Variant(component, element, &tensor);
        break;
    }
    if (!status.ok()) return status;
    if (tensor.dtype() != component.dtype || !component.shape.IsCompatibleWith(tensor.shape())) {
      return Fail(component, absl::StrCat("expected ", tensorflow::DataTypeString(component.dtype), " ",
                                          component.shape.DebugString(), ", got ",
                                          tensorflow::DataTypeString(tensor.dtype()), " ",
                                          tensor.shape().DebugString()));
    }
    out->push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::Fail(const Component& component, const std::string& what) const {
  return absl::InternalError(
      absl::StrCat("sidecar batch for field '", field_names_[component.field], "': ", what, "."));
}

const TensorEntry* ElementBuilder::Get(const Component& component, Role role) const {
  return entries_[component.field * protocol::kRoles + static_cast<int>(role)];
}

absl::Status ElementBuilder::Find(const Component& component, Role role, const TensorEntry** out) const {
  *out = Get(component, role);
  if (*out != nullptr) return absl::OkStatus();
  return Fail(component, absl::StrCat("expected a tensor with role ", static_cast<int>(role), ", got none"));
}

absl::Status ElementBuilder::Part(const Component& component, const TensorEntry& entry, int64_t element,
                                  tensorflow::TensorShape* shape, int64_t* first, int64_t* items) const {
  const int64_t elements = batch_->num_elements();
  if (entry.ndim < 1 || entry.dims[0] % elements != 0 || (!batched_ && entry.dims[0] != elements)) {
    return Fail(component, batched_ ? "expected batches of equal size" : "expected one row per element");
  }
  absl::Status status = batched_ ? shape->AddDimWithStatus(entry.dims[0] / elements) : absl::OkStatus();
  for (int i = 1; i < entry.ndim && status.ok(); ++i) status = shape->AddDimWithStatus(entry.dims[i]);
  if (!status.ok()) return status;
  *items = shape->num_elements();
  *first = element * *items;
  return absl::OkStatus();
}

tensorflow::Tensor ElementBuilder::View(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                                        const char* data, size_t bytes) const {
  const bool aligned = reinterpret_cast<uintptr_t>(data) % protocol::kAlignment == 0;
  if (may_alias_ && aligned && bytes >= kLeastAliasedBytes) {
    tensorflow::TensorBuffer* const buffer = new BatchBuffer(data, bytes, batch_);
    tensorflow::Tensor tensor(dtype, shape, buffer);
    buffer->Unref();
    return tensor;
  }
  tensorflow::Tensor tensor(dtype, shape);
  if (bytes > 0) std::memcpy(tensor.data(), data, bytes);
  return tensor;
}

absl::Status ElementBuilder::Dense(const Component& component, int64_t element, tensorflow::Tensor* out) const {
  const TensorEntry* entry;
  tensorflow::TensorShape shape;
  int64_t first = 0, items = 0;
  absl::Status status = Find(component, Role::kDense, &entry);
  if (status.ok()) status = Part(component, *entry, element, &shape, &first, &items);
  if (!status.ok()) return status;
  *out = Items(*entry, shape, first, items);
  return absl::OkStatus();
}

tensorflow::Tensor ElementBuilder::Items(const TensorEntry& entry, const tensorflow::TensorShape& shape, int64_t first,
                                         int64_t items) const {
  const size_t item_bytes = protocol::ItemBytes(static_cast<protocol::DType>(entry.dtype));
  return View(ToDataType(entry.dtype), shape, batch_->data(entry) + first * item_bytes, items * item_bytes);
}

absl::Status ElementBuilder::String(const Component& component, int64_t element, tensorflow::Tensor* out) const {
  const TensorEntry* offsets;
  tensorflow::TensorShape shape;
  int64_t first = 0, items = 0;
  absl::Status status = Find(component, Role::kStringOffsets, &offsets);
  if (status.ok()) status = Part(component, *offsets, element, &shape, &first, &items);
  if (!status.ok()) return status;
  return Strings(component, *offsets, shape, first, items, out);
}

absl::Status ElementBuilder::Strings(const Component& component, const TensorEntry& offsets_entry,
                                     const tensorflow::TensorShape& shape, int64_t first, int64_t items,
                                     tensorflow::Tensor* out) const {
  const TensorEntry* data_entry;
  const absl::Status status = Find(component, Role::kStringData, &data_entry);
  if (!status.ok()) return status;
  const int64_t* const offsets = reinterpret_cast<const int64_t*>(batch_->data(offsets_entry)) + first;
  const char* const data = batch_->data(*data_entry);
  *out = tensorflow::Tensor(tensorflow::DT_STRING, shape);
  auto strings = out->flat<tensorflow::tstring>();
  for (int64_t i = 0; i < items; ++i) {
    const int64_t begin = offsets[i], end = offsets[i + 1];
    if (begin < 0 || end < begin || static_cast<uint64_t>(end) > data_entry->bytes) {
      return Fail(component, "expected ascending string offsets inside the data");
    }
    strings(i).assign(data + begin, end - begin);
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::ArraysOf(const Component& component, int64_t element, Arrays* out) {
  const TensorEntry* entry;
  const absl::Status status = Find(component, Role::kRaggedShapes, &entry);
  if (!status.ok()) return status;
  if (entry->ndim != 2 || ToDataType(entry->dtype) != tensorflow::DT_INT64) {
    return Fail(component, "expected ragged shapes as int64 [arrays, axes]");
  }
  const int64_t arrays = entry->dims[0], axes = entry->dims[1];
  const int64_t* const shapes = reinterpret_cast<const int64_t*>(batch_->data(*entry));
  // Compute the first item of each array, once per batch and field.
  if (offsets_.empty()) offsets_.resize(field_names_.size());
  std::vector<int64_t>& offsets = offsets_[component.field];
  if (offsets.empty()) {
    offsets.resize(arrays + 1);
    for (int64_t array = 0; array < arrays; ++array) {
      int64_t items = 1;
      for (int64_t axis = 0; axis < axes; ++axis) {
        const int64_t length = shapes[array * axes + axis];
        if (length < 0 || __builtin_mul_overflow(items, length, &items)) {
          return Fail(component, "expected non-negative ragged shapes with fewer items");
        }
      }
      if (__builtin_add_overflow(offsets[array], items, &offsets[array + 1])) {
        return Fail(component, "expected ragged shapes with fewer items");
      }
    }
    const absl::Status fits = CheckItems(component, offsets[arrays]);
    if (!fits.ok()) return fits;
  }
  const int64_t elements = batch_->num_elements();
  const int64_t count = elements == 0 ? 0 : arrays / elements;
  if (count * elements != arrays) return Fail(component, "expected the same number of arrays in every element");
  const int64_t first = element * count;
  *out = Arrays{shapes + first * axes, axes, count, offsets[first], offsets[first + count] - offsets[first]};
  return absl::OkStatus();
}

absl::Status ElementBuilder::CheckItems(const Component& component, int64_t items) const {
  const TensorEntry* const numbers = Get(component, Role::kRaggedValues);
  const TensorEntry* const entry = numbers != nullptr ? numbers : Get(component, Role::kStringOffsets);
  if (entry == nullptr || entry->ndim != 1 || entry->dims[0] != items) {
    return Fail(component, absl::StrCat("expected ", items, " ragged values"));
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::Ragged(const Component& component, int64_t element, tensorflow::Tensor* out) {
  Arrays arrays;
  absl::Status status = ArraysOf(component, element, &arrays);
  if (!status.ok()) return status;
  tensorflow::TensorShape shape;
  if (component.kind == Component::Kind::kArray) {
    if (arrays.count != 1) return Fail(component, "expected one array in every row");
    for (int64_t axis = 0; axis < arrays.axes && status.ok(); ++axis) {
      status = shape.AddDimWithStatus(arrays.shapes[axis]);
    }
  } else {
    status = ValuesShape(component, arrays.items, &shape);
  }
  if (!status.ok()) return status;
  const TensorEntry* entry;
  if (component.dtype == tensorflow::DT_STRING) {
    status = Find(component, Role::kStringOffsets, &entry);
    return status.ok() ? Strings(component, *entry, shape, arrays.first_item, arrays.items, out) : status;
  }
  status = Find(component, Role::kRaggedValues, &entry);
  if (status.ok()) *out = Items(*entry, shape, arrays.first_item, arrays.items);
  return status;
}

absl::Status ElementBuilder::ValuesShape(const Component& component, int64_t items,
                                         tensorflow::TensorShape* shape) const {
  int64_t inner = 1;
  for (int i = 1; i < component.shape.dims(); ++i) inner *= component.shape.dim_size(i);
  if (inner < 0 || (inner > 0 && items % inner != 0)) return Fail(component, "expected a whole number of inner values");
  absl::Status status = shape->AddDimWithStatus(inner == 0 ? 0 : items / inner);
  for (int i = 1; i < component.shape.dims() && status.ok(); ++i) {
    status = shape->AddDimWithStatus(component.shape.dim_size(i));
  }
  return status;
}

absl::Status ElementBuilder::Splits(const Component& component, int64_t element, tensorflow::Tensor* out) {
  Arrays arrays;
  const absl::Status status = ArraysOf(component, element, &arrays);
  if (!status.ok()) return status;
  if (component.axis >= arrays.axes) return Fail(component, absl::StrCat("expected more than ", arrays.axes, " axes"));
  // An array of shape [s0, s1, ...] has s0 x ... x s(k-1) rows of length sk on axis k.
  int64_t partitions = 0;
  for (int64_t array = 0; array < arrays.count; ++array) partitions += Rows(arrays, array, component.axis);
  *out = tensorflow::Tensor(tensorflow::DT_INT64, tensorflow::TensorShape({partitions + 1}));
  auto splits = out->vec<int64_t>();
  int64_t at = 0, total = 0;
  splits(at++) = 0;
  for (int64_t array = 0; array < arrays.count; ++array) {
    const int64_t length = arrays.shapes[array * arrays.axes + component.axis];
    for (int64_t row = Rows(arrays, array, component.axis); row > 0; --row) splits(at++) = total += length;
  }
  return absl::OkStatus();
}

absl::Status ElementBuilder::Variant(const Component& component, int64_t element, tensorflow::Tensor* out) {
  tensorflow::Tensor splits, values;
  absl::Status status = Splits(component.parts[0], element, &splits);
  if (status.ok()) status = Ragged(component.parts[1], element, &values);
  if (!status.ok()) return status;
  if (values.dtype() != component.parts[1].dtype) {
    return Fail(component, absl::StrCat("expected ", tensorflow::DataTypeString(component.parts[1].dtype), ", got ",
                                        tensorflow::DataTypeString(values.dtype())));
  }
  const tensorflow::Tensor& empty = EmptyRagged();
  if (empty.dtype() != tensorflow::DT_VARIANT) return Fail(component, "expected a TensorFlow with ragged tensors");
  tensorflow::VariantTensorData data;
  data.set_type_name(kRaggedType);
  *data.add_tensors() = std::move(splits);
  *data.add_tensors() = std::move(values);
  *out = tensorflow::Tensor(tensorflow::DT_VARIANT, tensorflow::TensorShape({}));
  tensorflow::Variant& variant = out->scalar<tensorflow::Variant>()();
  variant = empty.scalar<tensorflow::Variant>()();
  if (!variant.Decode(std::move(data))) return Fail(component, "expected a TensorFlow with ragged tensors");
  return absl::OkStatus();
}

int64_t ElementBuilder::Rows(const Arrays& arrays, int64_t array, int axis) {
  int64_t rows = 1;
  for (int i = 0; i < axis; ++i) rows *= arrays.shapes[array * arrays.axes + i];
  return rows;
}

}  // namespace parquetry
