#!/usr/bin/env bash
# How parquetry scales from one processor to all of a larger machine, and if there is a GPU, whether it waits for batches.
# Installs nothing: the repository stands in for the package. Needs a Python with numpy, pyarrow, simplejpeg, pillow,
# cloudpickle, platformdirs, tqdm and psutil, with torch and torchdata or with tensorflow, and a C++ compiler.
#
#   PYTHON=python3 CORES=1,2,4,8,16 WORKLOADS=a,b,d CONTENDERS=threads,iterable benchmarks/device.sh [options of benchmarks.run]
#   GPU_CORES=2,8 benchmarks/device.sh --gpu [options of benchmarks.gpu_feed]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

cores=1
for ((count = 2; count <= $(nproc); count *= 2)); do cores+=,$count; done

package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
mkdir "$package/parquetry"
for part in parquetry/*.py common tf_plugin torch_plugin; do ln -s "$PWD/$part" "$package/parquetry/"; done
export PYTHONSAFEPATH=1 PYTHONPATH="$package:$PWD${PYTHONPATH:+:$PYTHONPATH}"

"$python" -m parquetry.common.base.native.build
if [[ ${1:-} == --gpu ]]; then
    "$python" -m benchmarks.gpu_feed --cores "${GPU_CORES:-$cores}" "${@:2}"
else
    "$python" -m benchmarks.run --name device --profile full --no-plot --workloads "${WORKLOADS:-a,b,d,e}" \
        --contenders "${CONTENDERS:-threads,sidecar,tf-graph,iterable,iterable-loader,node}" --cores "${CORES:-$cores}" "$@"
fi
