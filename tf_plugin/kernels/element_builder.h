// Turns a batch in shared memory into the flat tensors of one tf.data element.
//
// "<field>:<kind>" says how to make each flat component. The kinds are:
//   dense      the field's tensor, or one row of it if the pipeline is not batched
//   string     the same for strings
//   array      one row of a variable-shape field, as a dense tensor with its own shape
//   values     the flat values of a variable-shape field, with its trailing fixed axes
//   splits:<k> the int64 row splits of axis k of a variable-shape field (axis 0 has one partition
//              per array)
//   ragged:<dtype>:<axes> the values and row splits of a field of which only the first axis varies, as tf.data
//              passes on a ragged tensor: a scalar variant. The dtype is a number of types.proto, the other
//              axes are separated by commas.
// A tensor points into the batch if it is aligned and large enough to be worth it. No two tensors
// share a byte, so writing to one changes no other. (TensorFlow itself never writes to these
// tensors, because their buffers say that they do not own their memory.)

#ifndef PARQUETRY_KERNELS_ELEMENT_BUILDER_H_
#define PARQUETRY_KERNELS_ELEMENT_BUILDER_H_

#include <memory>
#include <string>
#include <vector>

#include "sidecar_client.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace parquetry {

struct Component {
  enum class Kind { kDense, kString, kArray, kValues, kSplits, kRagged };

  static absl::Status Parse(const std::string& text, tensorflow::DataType dtype,
                            const tensorflow::PartialTensorShape& shape, Component* out);

  int field = 0;
  Kind kind = Kind::kDense;
  int axis = 0;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::PartialTensorShape shape;
  std::vector<Component> parts;  // of a ragged tensor: its row splits and its values
};

// Makes the elements of one message in order. The message holds a single batch, several equal
// batches laid end to end, or a chunk, whose rows are the elements. Not thread-safe.
class ElementBuilder {
 public:
  ElementBuilder(const std::vector<Component>* components, const std::vector<std::string>* field_names, bool batched)
      : components_(*components), field_names_(*field_names), batched_(batched) {}

  // Starts on the next batch. You can then build `num_elements()` elements from it.
  absl::Status Attach(std::shared_ptr<const Batch> batch);

  void Detach() { batch_ = nullptr; }
  bool attached() const { return batch_ != nullptr; }
  int64_t num_elements() const { return batch_->num_elements(); }
  const Batch& batch() const { return *batch_; }

  absl::Status Build(int64_t element, std::vector<tensorflow::Tensor>* out);

 private:
  // A range of arrays of a variable-shape field, and their items.
  struct Arrays {
    const int64_t* shapes = nullptr;  // of the first array of the range
    int64_t axes = 0;
    int64_t count = 0;
    int64_t first_item = 0;
    int64_t items = 0;
  };

  absl::Status Fail(const Component& component, const std::string& what) const;
  const protocol::TensorEntry* Get(const Component& component, protocol::Role role) const;
  absl::Status Find(const Component& component, protocol::Role role, const protocol::TensorEntry** out) const;

  // Computes the shape of one element's part of a tensor, the number of items before the part, and
  // the number of items in it.
  absl::Status Part(const Component& component, const protocol::TensorEntry& entry, int64_t element,
                    tensorflow::TensorShape* shape, int64_t* first, int64_t* items) const;
  tensorflow::Tensor View(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, const char* data,
                          size_t bytes) const;
  absl::Status Dense(const Component& component, int64_t element, tensorflow::Tensor* out) const;
  tensorflow::Tensor Items(const protocol::TensorEntry& entry, const tensorflow::TensorShape& shape, int64_t first,
                           int64_t items) const;
  absl::Status String(const Component& component, int64_t element, tensorflow::Tensor* out) const;

  // Always copies, because TensorFlow's strings own their bytes.
  absl::Status Strings(const Component& component, const protocol::TensorEntry& offsets_entry,
                       const tensorflow::TensorShape& shape, int64_t first, int64_t items,
                       tensorflow::Tensor* out) const;
  absl::Status ArraysOf(const Component& component, int64_t element, Arrays* out);

  // Checks that the number of values matches the shapes.
  absl::Status CheckItems(const Component& component, int64_t items) const;
  absl::Status Ragged(const Component& component, int64_t element, tensorflow::Tensor* out);

  // Computes [items / inner, inner...]. The inner axes are the fixed ones after the last variable
  // one.
  absl::Status ValuesShape(const Component& component, int64_t items, tensorflow::TensorShape* shape) const;
  absl::Status Splits(const Component& component, int64_t element, tensorflow::Tensor* out);
  absl::Status Variant(const Component& component, int64_t element, tensorflow::Tensor* out);
  static int64_t Rows(const Arrays& arrays, int64_t array, int axis);

  const std::vector<Component>& components_;
  const std::vector<std::string>& field_names_;
  const bool batched_;
  bool may_alias_ = true;
  std::shared_ptr<const Batch> batch_;
  std::vector<const protocol::TensorEntry*> entries_;  // by field, then role
  std::vector<std::vector<int64_t>> offsets_;          // by field, only if its shape varies
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_ELEMENT_BUILDER_H_
