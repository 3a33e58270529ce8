#!/usr/bin/env bash
# How the PyTorch face scales from one processor to all of a larger machine. Installs nothing: the repository stands in
# for the package. Needs a Python with torch, torchdata, pyarrow, simplejpeg, pillow, cloudpickle, platformdirs, tqdm, psutil.
#
#   PYTHON=python3 CORES=1,2,4,8,16 WORKLOADS=a,c-tensor,d benchmarks/device.sh [more options of benchmarks.run]
set -euo pipefail
cd "$(dirname "$0")/.."

cores=1
for ((count = 2; count <= $(nproc); count *= 2)); do cores+=,$count; done

package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
mkdir "$package/parquetry"
for folder in common tf_plugin torch_plugin; do ln -s "$PWD/$folder" "$package/parquetry/$folder"; done

PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python3}" -m benchmarks.run --name device --no-plot \
    --workloads "${WORKLOADS:-a,c-tensor,d}" --contenders threads,pipe,pipe-loader,node --cores "${CORES:-$cores}" "$@"
