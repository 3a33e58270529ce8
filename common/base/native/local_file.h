// Reads parts of local files, and returns which version of a file is at a path. Files are opened with O_NONBLOCK,
// because opening a pipe that has replaced a file would block.

#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace {

// What the file system reports about a file. All 0 if there is no file.
struct FileStatus {
  int64_t size, modified_ns, changed_ns, inode, mode, links, owner, group;
};
static_assert(sizeof(FileStatus) == 64, "Python reads it by the same layout");

inline FileStatus status_of(const char* path) {
  struct stat found;
  if (stat(path, &found) != 0) return {};
  constexpr int64_t kSecond = 1000000000;
#if defined(__APPLE__)
  const timespec modified = found.st_mtimespec, changed = found.st_ctimespec;
#else
  const timespec modified = found.st_mtim, changed = found.st_ctim;
#endif
  return {found.st_size,
          modified.tv_sec * kSecond + modified.tv_nsec,
          changed.tv_sec * kSecond + changed.tv_nsec,
          static_cast<int64_t>(found.st_ino),
          found.st_mode,
          static_cast<int64_t>(found.st_nlink),
          found.st_uid,
          found.st_gid};
}

// Reads a part of a file. Returns false if the file ends before it, or cannot be read.
inline bool read_file(int descriptor, int64_t begin, int64_t size, uint8_t* to) {
  while (size > 0) {
    const ssize_t read = pread(descriptor, to, static_cast<size_t>(size), begin);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    begin += read;
    to += read;
    size -= read;
  }
  return true;
}

}  // namespace
