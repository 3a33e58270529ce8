#include "parquet_dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "parquet_iterator.h"
#include "split_provider.h"
#include "to_status.h"

namespace parquetry {

using tensorflow::tstring;
using tensorflow::data::DatasetBase;

namespace {

constexpr char kShardAdvice[] =
    "A ParquetDataset cannot be sharded by files (AutoShardPolicy.FILE). Use dataset.shard(num_shards, index), which "
    "reads only its part, or set options.experimental_distribute.auto_shard_policy to AutoShardPolicy.DATA or OFF. With "
    "tf.data service, use ShardingPolicy.DYNAMIC, DATA or OFF.";

}  // namespace

ParquetDataset::ParquetDataset(tensorflow::OpKernelContext* ctx, ElementForm form, Request request, bool passing,
                               std::string state)
    : DatasetBase(tensorflow::data::DatasetContext(ctx)),
      form_(std::move(form)),
      request_(std::move(request)),
      state_(std::move(state)),
      facts_(DatasetRegistry::Get().Facts(request_.dataset_key, passing)) {}

const std::string& ParquetDataset::OwnKey() const {
  std::call_once(own_key_made_, [this] {
    own_key_ = DatasetRegistry::Get().NewKey();
    own_facts_ = DatasetRegistry::Get().Facts(own_key_, /*passing=*/true);
  });
  return own_key_;
}

std::unique_ptr<tensorflow::data::IteratorBase> ParquetDataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<ParquetIterator>(
      ParquetIterator::Params{this, absl::StrCat(prefix, "::ParquetryParquet")});
}

absl::Status ParquetDataset::MakeSplitProviders(
    std::vector<std::unique_ptr<tensorflow::data::SplitProvider>>* split_providers) const {
  split_providers->push_back(std::make_unique<ParquetSplitProvider>(request_.OnThisMachine()));
  return absl::OkStatus();
}

int64_t ParquetDataset::CardinalityInternal(tensorflow::data::CardinalityOptions) const {
  // This method cannot return an error. An iterator will hit the same one.
  return CardinalityOrUnknown(request_.OnThisMachine(), *facts_, written_.exchange(false), LogWarning);
}

absl::Status ParquetDataset::InputDatasets(std::vector<const DatasetBase*>* inputs) const {
  inputs->clear();
  return absl::OkStatus();
}

absl::Status ParquetDataset::AsGraphDefInternal(tensorflow::data::SerializationContext*, DatasetGraphDefBuilder* b,
                                                tensorflow::Node** output) const {
  tensorflow::Node *request, *key, *command, *state;
  const std::vector<tstring> program(request_.command.begin(), request_.command.end());
  TF_RETURN_IF_ERROR(b->AddScalar(tstring(request_.json), &request));
  TF_RETURN_IF_ERROR(b->AddScalar(tstring(request_.dataset_key), &key));
  TF_RETURN_IF_ERROR(b->AddVector(program, &command));
  TF_RETURN_IF_ERROR(b->AddScalar(tstring(state_), &state));
  tensorflow::AttrValue components, field_names, batched;
  b->BuildAttrValue(form_.component_texts, &components);
  b->BuildAttrValue(form_.field_names, &field_names);
  b->BuildAttrValue(form_.batched, &batched);
  // If tf.data cannot shard a source, it prints the source with its attributes and says little
  // else.
  tensorflow::AttrValue advice;
  b->BuildAttrValue(std::string(kShardAdvice), &advice);
  written_ = true;
  return b->AddDataset(this, {request, key, command, state},
                       {{"auto_shard_advice", advice},
                        {"components", components},
                        {"field_names", field_names},
                        {"batched", batched}},
                       output);
}

}  // namespace parquetry
