// Decodes parts of JPEG images with libjpeg-turbo, and finishes them as `ImageRows` does. Pixels outside a part are neither
// transformed nor converted to colors. The pixels of the part are those of the whole image, exactly.
//
// The library itself is found at run time, so this file needs only its header. Without the header, nothing is decoded
// here. These functions keep no state between images and start no threads.

#include <cstddef>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs it

#include "image_rows.h"

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

// A part of an image that is decoded at 1 / `factor` of its size, and what to make of it. The box is in pixels of the
// reduced image.
struct Part {
  const uint8_t* data;
  int64_t bytes;
  int64_t height, width;  // of the whole image, not reduced
  int64_t factor;         // 1, 2, 4 or 8
  int64_t top, left, box_height, box_width;
  int64_t channels;           // 1 (gray) or 3 (RGB)
  int64_t reads_all;          // whether the file is read to its end, so that damage is noticed anywhere
  int64_t new_height, new_width;  // the part is resized to this,
  int64_t filter;                 // in this way
  int64_t mirrored, upside_down;
  parquetry::Place place;  // of uint8, or of float32 if there are factors
  int64_t decoded;         // set to 1 if the part was decoded
};
static_assert(sizeof(Part) == 168, "Python describes parts by the same layout");

#if PARQUETRY_HAS_JPEG

// Chroma is interpolated between neighbors, so a few more columns are decoded on either side of the box.
constexpr int64_t kNeighbors = 16;

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

// Leaves the decoder at the first error or warning. Another decoder then reports what is wrong with the image.
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

[[noreturn]] void give_up(jpeg_decompress_struct* state) { leave(reinterpret_cast<j_common_ptr>(state)); }

// The memory belongs to `state`, so `longjmp` may leave at any time.
void* memory_of(jpeg_decompress_struct* state, size_t bytes) {
  return state->mem->alloc_large(reinterpret_cast<j_common_ptr>(state), JPOOL_IMAGE, bytes);
}

// Decodes an image straight into the place of its part.
void decode_in_place(const Library& library, jpeg_decompress_struct* state, const Part& part) {
  constexpr int64_t kAtOnce = 16;
  auto* const pixels = static_cast<uint8_t*>(part.place.pixels);
  while (state->output_scanline < state->output_height) {
    JSAMPROW rows[kAtOnce];
    const int64_t left = static_cast<int64_t>(state->output_height - state->output_scanline);
    const int64_t count = left < kAtOnce ? left : kAtOnce;
    for (int64_t row = 0; row < count; ++row) {
      rows[row] = pixels + (static_cast<int64_t>(state->output_scanline) + row) * part.place.row;
    }
    if (library.read(state, rows, static_cast<JDIMENSION>(count)) == 0) give_up(state);
  }
}

// Decodes the rows of a part one by one, and finishes each of them.
void decode_rows(const Library& library, jpeg_decompress_struct* state, const Part& part,
                 const parquetry::Factors& factors) {
  const int64_t whole_width = state->output_width;
  const int64_t right = part.left + part.box_width + kNeighbors;
  JDIMENSION begin = static_cast<JDIMENSION>(part.left > kNeighbors ? part.left - kNeighbors : 0);
  JDIMENSION width = static_cast<JDIMENSION>((right < whole_width ? right : whole_width) - begin);
  if (width < whole_width) library.crop(state, &begin, &width);
  const size_t line_bytes = static_cast<size_t>(width * part.channels + parquetry::ImageRows::kSlack + 1);
  auto* line = static_cast<uint8_t*>(memory_of(state, line_bytes));
  std::memset(line + line_bytes - parquetry::ImageRows::kSlack, 0, parquetry::ImageRows::kSlack);
  // The decoder writes past the cache to aligned addresses, but this line is read again at once.
  if (reinterpret_cast<uintptr_t>(line) % 2 == 0) ++line;
  const parquetry::ImageRows::Size size = {part.box_height, part.box_width, part.channels,
                                           part.new_height, part.new_width, parquetry::Filter{part.filter}};
  void* const memory = size.resizes() ? memory_of(state, parquetry::ImageRows::memory_bytes(size)) : nullptr;
  parquetry::ImageRows rows;
  rows.begin(size, part.mirrored != 0, part.upside_down != 0, part.place, factors, memory);
  if (part.top) library.skip(state, static_cast<JDIMENSION>(part.top));
  const uint8_t* const first = line + (part.left - static_cast<int64_t>(begin)) * part.channels;
  for (int64_t row = 0; row < part.box_height; ++row) {
    JSAMPROW lines[] = {line};
    if (library.read(state, lines, 1) != 1) give_up(state);
    rows.take(first, row);
  }
  if (!part.reads_all) return;
  // Skipping to the last line would end the image there, without reading what is below the part.
  const JDIMENSION below = state->output_height - state->output_scanline;
  if (below > 1) library.skip(state, below - 1);
  JSAMPROW last[] = {line};
  if (below && library.read(state, last, 1) != 1) give_up(state);
}

void decode(const Library& library, jpeg_decompress_struct* state, const Part& part,
            const parquetry::Factors& factors) {
  state->scale_num = 1;
  state->scale_denom = static_cast<unsigned>(part.factor);
  state->out_color_space = part.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  library.start(state);
  const int64_t height = state->output_height, width = state->output_width;
  if (part.top + part.box_height > height || part.left + part.box_width > width) give_up(state);
  const bool whole = part.box_height == height && part.box_width == width;
  const bool unchanged = part.new_height == height && part.new_width == width && !part.mirrored && !part.upside_down;
  const bool packed = part.place.channel == 1 && part.place.pixel == part.channels && factors.multiply == nullptr;
  if (whole && unchanged && packed) {
    decode_in_place(library, state, part);
    library.finish(state);
    return;
  }
  decode_rows(library, state, part, factors);
  if (part.reads_all) library.finish(state);
}

bool decode_part(const Library& library, const Part& part, const parquetry::Factors& factors) {
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
    return false;
  }
  // Each image gets a new decoder: an image that lacks Huffman tables must not use those of another.
  library.create(&state, JPEG_LIB_VERSION, sizeof(state));
  library.read_memory(&state, part.data, static_cast<unsigned long>(part.bytes));
  library.read_header(&state, TRUE);
  if (!fits(state, part)) give_up(&state);
  decode(library, &state, part, factors);
  library.destroy(&state);
  return true;
}

#endif  // PARQUETRY_HAS_JPEG

}  // namespace

extern "C" {

// Loads libjpeg-turbo from a path, or by name. Returns what `parquetry_jpeg_parts` needs, which is never freed, or null if
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

// Decodes parts, and sets which of them it decoded. The others are other JPEG images, or damaged, and their places hold
// any bytes. `multiply` and `subtract` have a number for each channel, or both are null.
__attribute__((visibility("default"))) void parquetry_jpeg_parts([[maybe_unused]] const void* loaded,
                                                                 [[maybe_unused]] Part* parts,
                                                                 [[maybe_unused]] int64_t count,
                                                                 [[maybe_unused]] const float* multiply,
                                                                 [[maybe_unused]] const float* subtract) {
#if PARQUETRY_HAS_JPEG
  const Library& library = *static_cast<const Library*>(loaded);
  for (int64_t number = 0; number < count; ++number) {
    parts[number].decoded = decode_part(library, parts[number], {multiply, subtract}) ? 1 : 0;
  }
#endif
}

}  // extern "C"
