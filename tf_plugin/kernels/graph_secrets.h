// The secrets of requests. A graph, which may be saved or sent to other machines, holds a token in
// their place (docs/protocol.md); Python gives this process the secret parts themselves.

#ifndef PARQUETRY_KERNELS_GRAPH_SECRETS_H_
#define PARQUETRY_KERNELS_GRAPH_SECRETS_H_

#include <string>

namespace parquetry {

// Returns the request with the secrets in place of their token. If it has no token, or this process
// does not know the token, returns the request unchanged; the sidecar then says what is missing.
std::string WithSecrets(const std::string& request);

}  // namespace parquetry

// Called from Python. Keeps the secrets (JSON) of a token for as long as the process runs.
extern "C" __attribute__((visibility("default"))) void parquetry_keep_secrets(const char* token, const char* secrets);

#endif  // PARQUETRY_KERNELS_GRAPH_SECRETS_H_
