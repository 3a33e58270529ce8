// Whether datasets run in the process that made them, or as the copy of a graph, as in a worker of
// tf.data service.

#ifndef PARQUETRY_KERNELS_HOME_H_
#define PARQUETRY_KERNELS_HOME_H_

#include "tensorflow/core/framework/resource_mgr.h"

namespace parquetry {

// Call this where Python makes a dataset, with the resources of the device.
void MarkHome(tensorflow::ResourceMgr* resources);

// Returns whether Python made a dataset on the device that has these resources. A service worker has
// a device of its own for each task, even in the process of the trainer.
bool IsHome(tensorflow::ResourceMgr* resources);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_HOME_H_
