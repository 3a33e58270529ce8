// Decodes a part of a JPEG image with libjpeg-turbo. The whole file is read, so damage is noticed anywhere, but pixels
// outside the part are neither transformed nor converted to colours. The pixels are those of the whole image, exactly.
//
// The library itself is found at run time, so this file needs only its header. Without the header, nothing is decoded
// here. These functions keep no state between calls and start no threads.

#include <cstddef>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs it

#if __has_include(<jpeglib.h>)
#include <dlfcn.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#endif

#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2000000
#define PARQUETRY_HAS_JPEG 1
#else
#define PARQUETRY_HAS_JPEG 0
#endif

namespace {

[[maybe_unused]] constexpr int64_t kDecoded = 0;
constexpr int64_t kNotDecoded = 1;

// A part of an image that is decoded at 1 / `factor` of its size. The box is in pixels of the reduced image.
struct Part {
  int64_t height, width;  // of the whole image, not reduced
  int64_t factor;         // 1, 2, 4 or 8
  int64_t top, left, box_height, box_width;
  int64_t channels;  // 1 (grey) or 3 (RGB)
};
static_assert(sizeof(Part) == 64, "Python describes parts by the same layout");

#if PARQUETRY_HAS_JPEG

// Chroma is interpolated from its neighbours, so a few more columns are decoded on either side of the box.
constexpr int64_t kNeighbours = 16;

struct Library {
  decltype(&jpeg_CreateDecompress) create;
  decltype(&jpeg_destroy_decompress) destroy;
  decltype(&jpeg_mem_src) read_memory;
  decltype(&jpeg_read_header) read_header;
  decltype(&jpeg_start_decompress) start;
  decltype(&jpeg_crop_scanline) crop;
  decltype(&jpeg_skip_scanlines) skip;
  decltype(&jpeg_read_scanlines) read;
  decltype(&jpeg_finish_decompress) finish;
};

template <class Function>
bool find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

bool find_all(void* handle, Library* library) {
  return find(handle, "jpeg_CreateDecompress", &library->create) &&
         find(handle, "jpeg_destroy_decompress", &library->destroy) &&
         find(handle, "jpeg_mem_src", &library->read_memory) &&
         find(handle, "jpeg_read_header", &library->read_header) &&
         find(handle, "jpeg_start_decompress", &library->start) && find(handle, "jpeg_crop_scanline", &library->crop) &&
         find(handle, "jpeg_skip_scanlines", &library->skip) && find(handle, "jpeg_read_scanlines", &library->read) &&
         find(handle, "jpeg_finish_decompress", &library->finish);
}

// Leaves the decoder at the first error or warning. A whole decoder then says what is wrong with the image.
struct Errors {
  jpeg_error_mgr base;
  jmp_buf leave;
};

[[noreturn]] void leave(j_common_ptr state) { longjmp(reinterpret_cast<Errors*>(state->err)->leave, 1); }

void leave_at_warning(j_common_ptr state, int level) {
  if (level < 0) leave(state);
}

void ignore(j_common_ptr) {}

void no_message(j_common_ptr, char* message) { *message = '\0'; }

bool fits(const jpeg_decompress_struct& state, const Part& part) {
  const bool expected = state.image_height == part.height && state.image_width == part.width;
  const bool converts = state.jpeg_color_space == JCS_YCbCr || state.jpeg_color_space == JCS_GRAYSCALE ||
                        state.jpeg_color_space == JCS_RGB;
  return expected && converts && state.data_precision == 8;
}

// Everything that `longjmp` may leave is in memory that `state` owns.
void decode(const Library& library, jpeg_decompress_struct* state, const Part& part, uint8_t* target) {
  state->scale_num = 1;
  state->scale_denom = static_cast<unsigned>(part.factor);
  state->out_color_space = part.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  library.start(state);
  const int64_t whole_width = state->output_width;
  if (part.top + part.box_height > state->output_height || part.left + part.box_width > whole_width) {
    leave(reinterpret_cast<j_common_ptr>(state));
  }
  const int64_t right = part.left + part.box_width + kNeighbours;
  JDIMENSION begin = static_cast<JDIMENSION>(part.left > kNeighbours ? part.left - kNeighbours : 0);
  JDIMENSION width = static_cast<JDIMENSION>((right < whole_width ? right : whole_width) - begin);
  if (width < whole_width) library.crop(state, &begin, &width);
  const size_t row_bytes = static_cast<size_t>(part.box_width * part.channels);
  const size_t skipped = static_cast<size_t>((part.left - begin) * part.channels);
  auto* line = static_cast<uint8_t*>(
      state->mem->alloc_large(reinterpret_cast<j_common_ptr>(state), JPOOL_IMAGE, width * part.channels + 1));
  // The decoder writes around the cache to aligned addresses. This line is read again at once.
  if (reinterpret_cast<uintptr_t>(line) % 2 == 0) ++line;
  if (part.top) library.skip(state, static_cast<JDIMENSION>(part.top));
  for (int64_t row = 0; row < part.box_height; ++row) {
    JSAMPROW rows[] = {line};
    if (library.read(state, rows, 1) != 1) leave(reinterpret_cast<j_common_ptr>(state));
    std::memcpy(target + static_cast<size_t>(row) * row_bytes, line + skipped, row_bytes);
  }
  // Skipping to the last line would end there, without reading what is below the part.
  const JDIMENSION below = state->output_height - state->output_scanline;
  if (below > 1) library.skip(state, below - 1);
  JSAMPROW last[] = {line};
  if (below && library.read(state, last, 1) != 1) leave(reinterpret_cast<j_common_ptr>(state));
  library.finish(state);
}

#endif  // PARQUETRY_HAS_JPEG

}  // namespace

extern "C" {

// Loads libjpeg-turbo from a path, or by name. Returns what `parquetry_jpeg_part` needs, which is never freed, or null if
// this library cannot be used.
__attribute__((visibility("default"))) const void* parquetry_jpeg_library([[maybe_unused]] const char* path) {
#if PARQUETRY_HAS_JPEG
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto* const library = static_cast<Library*>(std::malloc(sizeof(Library)));
  if (library != nullptr && find_all(handle, library)) return library;
  std::free(library);
  dlclose(handle);
#endif
  return nullptr;
}

// Decodes a part into `target`, `[box_height, box_width, channels]`. Returns 0 if it has. Returns 1 if the image is not
// such a JPEG or is damaged; then `target` holds anything.
__attribute__((visibility("default"))) int64_t parquetry_jpeg_part([[maybe_unused]] const void* loaded,
                                                                   [[maybe_unused]] const uint8_t* data,
                                                                   [[maybe_unused]] int64_t bytes,
                                                                   [[maybe_unused]] const Part* part,
                                                                   [[maybe_unused]] uint8_t* target) {
#if PARQUETRY_HAS_JPEG
  const Library& library = *static_cast<const Library*>(loaded);
  jpeg_decompress_struct state;
  std::memset(&state, 0, sizeof(state));
  Errors errors;
  std::memset(&errors, 0, sizeof(errors));
  errors.base.error_exit = leave;
  errors.base.emit_message = leave_at_warning;
  errors.base.output_message = ignore;
  errors.base.format_message = no_message;
  errors.base.reset_error_mgr = ignore;
  state.err = &errors.base;
  if (setjmp(errors.leave) != 0) {
    library.destroy(&state);
    return kNotDecoded;
  }
  library.create(&state, JPEG_LIB_VERSION, sizeof(state));
  library.read_memory(&state, data, static_cast<unsigned long>(bytes));
  library.read_header(&state, TRUE);
  if (!fits(state, *part)) leave(reinterpret_cast<j_common_ptr>(&state));
  decode(library, &state, *part, target);
  library.destroy(&state);
  return kDecoded;
#else
  return kNotDecoded;
#endif
}

}  // extern "C"
