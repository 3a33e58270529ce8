// From a batch in shared memory to the flat tensors of one tf.data element.
//
// How each flat component is made is written as "<field>:<kind>", where kind is
//   dense      the field's tensor, or in an unbatched pipeline one row of it
//   string     the same for strings
//   cell       one row of a field of variable shape, as a dense tensor of its own shape
//   values     the flat values of a field of variable shape, with its trailing fixed axes
//   splits:<k> the int64 row splits of axis k of a field of variable shape (axis 0 has one partition per cell)
// A tensor points into the batch where it is aligned and big enough to be worth it. No two tensors share a byte, so that
// one who writes to a tensor (TensorFlow never does, because its buffer says that it does not own its memory) changes no
// other.

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
  enum class Kind { kDense, kString, kCell, kValues, kSplits };

  static absl::Status Parse(const std::string& text, tensorflow::DataType dtype,
                            const tensorflow::PartialTensorShape& shape, Component* out);

  int field = 0;
  Kind kind = Kind::kDense;
  int axis = 0;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::PartialTensorShape shape;
};

// Makes the elements of one message after the other: the batch in it, each of several equal batches laid end to end,
// or each row of a chunk. Not thread-safe.
class ElementBuilder {
 public:
  ElementBuilder(const std::vector<Component>* components, const std::vector<std::string>* field_names, bool batched)
      : components_(*components), field_names_(*field_names), batched_(batched) {}

  // Takes the next batch up; `num_elements()` elements can then be built from it.
  absl::Status Attach(std::shared_ptr<const Batch> batch);

  void Detach() { batch_ = nullptr; }
  bool attached() const { return batch_ != nullptr; }
  int64_t num_elements() const { return batch_->num_elements(); }
  const Batch& batch() const { return *batch_; }

  absl::Status Build(int64_t element, std::vector<tensorflow::Tensor>* out);

 private:
  // A range of the cells of a field of variable shape, and of their elements.
  struct Cells {
    const int64_t* shapes = nullptr;  // of the first cell of the range
    int64_t axes = 0;
    int64_t count = 0;
    int64_t first_item = 0;
    int64_t items = 0;
  };

  absl::Status Fail(const Component& component, const std::string& what) const;
  const protocol::TensorEntry* Get(const Component& component, protocol::Role role) const;
  absl::Status Find(const Component& component, protocol::Role role, const protocol::TensorEntry** out) const;

  // The shape of an element's part of a tensor, and the number of items before and in it.
  absl::Status Part(const Component& component, const protocol::TensorEntry& entry, int64_t element,
                    tensorflow::TensorShape* shape, int64_t* first, int64_t* items) const;
  tensorflow::Tensor View(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, const char* data,
                          size_t bytes) const;
  absl::Status Dense(const Component& component, int64_t element, tensorflow::Tensor* out) const;
  tensorflow::Tensor Items(const protocol::TensorEntry& entry, const tensorflow::TensorShape& shape, int64_t first,
                           int64_t items) const;
  absl::Status String(const Component& component, int64_t element, tensorflow::Tensor* out) const;

  // TensorFlow's strings own their bytes, so these are always copied.
  absl::Status Strings(const Component& component, const protocol::TensorEntry& offsets_entry,
                       const tensorflow::TensorShape& shape, int64_t first, int64_t items,
                       tensorflow::Tensor* out) const;
  absl::Status CellsOf(const Component& component, int64_t element, Cells* out);

  // That the values hold as many items as the shapes say.
  absl::Status CheckItems(const Component& component, int64_t items) const;
  absl::Status Ragged(const Component& component, int64_t element, tensorflow::Tensor* out);

  // [items / inner, inner...], where the inner axes are the fixed ones behind the last variable one.
  absl::Status ValuesShape(const Component& component, int64_t items, tensorflow::TensorShape* shape) const;
  absl::Status Splits(const Component& component, int64_t element, tensorflow::Tensor* out);
  static int64_t Rows(const Cells& cells, int64_t cell, int axis);

  const std::vector<Component>& components_;
  const std::vector<std::string>& field_names_;
  const bool batched_;
  bool may_alias_ = true;
  std::shared_ptr<const Batch> batch_;
  std::vector<const protocol::TensorEntry*> entries_;  // by field, then role
  std::vector<std::vector<int64_t>> offsets_;          // by field, for those of variable shape
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_ELEMENT_BUILDER_H_
