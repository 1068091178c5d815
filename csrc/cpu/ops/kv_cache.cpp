// Launchers of the kv_cache family: tokens or blocks over threads.
#include <cmath>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/indices.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGrainElements = 16384;

bool is_f16_infinity(uint16_t half) { return (half & 0x7fff) == 0x7c00; }

bool is_infinity(const TensorView& x, const char* data, int64_t i) {
  if (x.dtype == DType::kF16) return true;  // as it was
  if (x.dtype == DType::kF32) return std::isinf(reinterpret_cast<const float*>(data)[i]);
  return (reinterpret_cast<const uint16_t*>(data)[i] & 0x7fff) == 0x7f80;
}

// Keeps a finite number beyond the range of f16 as the largest of its sign: as an infinity it would
// make a NaN of every later token.
void saturate(uint16_t* to, const TensorView& x, const char* from, int64_t count) {
  uint32_t num_infinities = 0;
  for (int64_t i = 0; i < count; ++i) num_infinities += is_f16_infinity(to[i]) ? 1 : 0;
  if (num_infinities == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    if (is_f16_infinity(to[i]) && !is_infinity(x, from, i)) --to[i];  // the number next to it
  }
}

// Casts one token's [Nk, D].
void cast_token(const char* op, const TensorView& to, const TensorView& from, MapKernel kernel) {
  const auto elements = elements_of<2>(op, {to, from});
  for (int64_t i = 0; i < elements.num_runs; ++i) {
    kernel(elements.at(0, i, 0), elements.at(1, i, 0), 0, elements.run);
    if (to.dtype == DType::kF16) {
      saturate(reinterpret_cast<uint16_t*>(elements.at(0, i, 0)), from,
               static_cast<const char*>(elements.at(1, i, 0)), elements.run);
    }
  }
}

int64_t grain_of(const TensorView& items) {
  const int64_t num_items = items.shape[0] > 0 ? items.shape[0] : 1;
  return kGrainElements / (items.size() / num_items + 1) + 1;
}

// Throws unless b is a cache of one shape and dtype with a.
void check_alike(const char* op, const TensorView& a, const TensorView& b) {
  PYVT_CHECK(
      op,
      a.rank == 4 && b.rank == 4 && a.dtype == b.dtype && std::equal(a.shape, a.shape + 4, b.shape),
      "caches: expected dims [B, S, Nk, D] of one dtype");
}

// Writes keys and values [T, Nk, D] to their slots; a slot of -1 is padding.
class CacheWriter {
 public:
  CacheWriter(const char* op, const TensorView& k_cache, const TensorView& v_cache,
              const TensorView& k, const TensorView& v, const TensorView& slot_mapping)
      : op_(op),
        slots_(indices_of(op, "slot_mapping", slot_mapping)),
        sides_{{k_cache, k, nullptr}, {v_cache, v, nullptr}} {
    check_alike(op, k_cache, v_cache);
    for (Side& side : sides_) {
      const TensorView& x = side.from;
      PYVT_CHECK(op,
                 x.rank == 3 && x.shape[0] == slots_.size && x.shape[1] == k_cache.shape[2] &&
                     x.shape[2] == k_cache.shape[3],
                 "k, v: expected dims [T, Nk, D]");
      const int of_x = float_index(op, x.dtype);
      side.cast = k_cache.dtype == DType::kFP8
                      ? kernels().narrow_to_fp8[of_x]
                      : kernels().cast[of_x][float_index(op, k_cache.dtype)];
    }
    check_range(op, "slot_mapping", slots_, -1, k_cache.shape[0] * k_cache.shape[1]);
  }

  void write(int64_t token) const {
    const int64_t slot = slots_[token];
    if (slot < 0) return;
    for (const Side& side : sides_) {
      const int64_t block_size = side.cache.shape[1];
      const TensorView to = slice(slice(side.cache, slot / block_size), slot % block_size);
      cast_token(op_, to, slice(side.from, token), side.cast);
    }
  }

 private:
  struct Side {
    const TensorView& cache;
    const TensorView& from;
    MapKernel cast;
  };

  const char* const op_;
  const Indices slots_;
  Side sides_[2];
};

}  // namespace

void reshape_and_cache(TensorView k_cache, TensorView v_cache, TensorView k, TensorView v,
                       TensorView slot_mapping) {
  const CacheWriter writer("reshape_and_cache", k_cache, v_cache, k, v, slot_mapping);
  parallel_for(k.shape[0], grain_of(k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) writer.write(t);
  });
}

// A token's heads are normed, turned and written while they lie in the first-level cache.
void rotate_and_cache(TensorView q, TensorView k, TensorView k_cache, TensorView v_cache,
                      TensorView v, TensorView q_weight, TensorView k_weight, TensorView positions,
                      TensorView cos_sin, TensorView slot_mapping, double eps) {
  const char* op = "rotate_and_cache";
  const CacheWriter writer(op, k_cache, v_cache, k, v, slot_mapping);
  const Indices places = indices_of(op, "positions", positions);
  const Rows angles = rows_of(op, "cos_sin", cos_sin);
  const int64_t head_dim = k.shape[2];
  PYVT_CHECK(op, cos_sin.rank == 2 && angles.length % 2 == 0 && angles.length <= head_dim,
             "cos_sin: expected dims [P, even R], R at most D");
  PYVT_CHECK(op, places.size == k.shape[0], "positions: expected T=", k.shape[0]);
  check_range(op, "positions", places, 0, angles.num_rows);
  const KernelTable& table = kernels();
  const int of_x = float_index(op, v.dtype);
  const struct {
    const TensorView &x, &weight;
  } heads[] = {{q, q_weight}, {k, k_weight}};
  for (const auto& [x, weight] : heads) {
    PYVT_CHECK(op,
               x.rank == 3 && x.shape[0] == k.shape[0] && x.shape[2] == head_dim &&
                   x.dtype == v.dtype && x.is_dense(1),
               "q, k: expected dims [T, heads, D] with a dense last dim, of the dtype of v");
    PYVT_CHECK(op,
               !weight.has_value() ||
                   (weight.rank == 1 && weight.shape[0] == head_dim && weight.is_dense()),
               "weight: expected dense dims [D]");
  }
  const auto rotate = table.rotate_head[of_x][float_index(op, cos_sin.dtype)];
  const int64_t half = angles.length / 2, item = item_bytes(v.dtype);
  const auto turn = [&](const TensorView& x, const TensorView& weight, int64_t t) {
    const void* of_token = angles.row(places[t]);
    const auto norm =
        weight.has_value() ? table.rms_norm[of_x][float_index(op, weight.dtype)][of_x] : nullptr;
    char* head = static_cast<char*>(x.data) + t * x.stride[0] * item;
    for (int64_t n = 0; n < x.shape[1]; ++n, head += x.stride[1] * item) {
      if (norm != nullptr) norm(head, head, weight.data, static_cast<float>(eps), head_dim);
      rotate(head, of_token, half);
    }
  };
  const int64_t elements = (q.shape[1] + 2 * k.shape[1]) * head_dim;
  parallel_for(k.shape[0], kGrainElements / (elements + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (const auto& [x, weight] : heads) turn(x, weight, t);
      writer.write(t);
    }
  });
}

void copy_blocks(TensorView k_cache, TensorView v_cache, TensorView src_dst) {
  const char* op = "copy_blocks";
  PYVT_CHECK(op, src_dst.rank == 2 && src_dst.shape[1] == 2, "src_dst: expected dims [M, 2]");
  check_alike(op, k_cache, v_cache);
  TensorView column = src_dst;
  column.rank = 1;
  const Indices src = indices_of(op, "src_dst", column);
  column.data = static_cast<char*>(src_dst.data) + src_dst.stride[1] * item_bytes(src_dst.dtype);
  const Indices dst = indices_of(op, "src_dst", column);
  check_range(op, "src_dst", src, 0, k_cache.shape[0]);
  check_range(op, "src_dst", dst, 0, k_cache.shape[0]);
  parallel_for(src.size, grain_of(k_cache), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      copy_view(op, slice(k_cache, dst[m]), slice(k_cache, src[m]));
      copy_view(op, slice(v_cache, dst[m]), slice(v_cache, src[m]));
    }
  });
}

void gather_blocks(TensorView out, TensorView cache, TensorView block_ids) {
  const char* op = "gather_blocks";
  const Indices ids = indices_of(op, "block_ids", block_ids);
  PYVT_CHECK(op,
             out.rank == 4 && cache.rank == 4 && out.shape[0] == ids.size &&
                 out.dtype == cache.dtype &&
                 std::equal(out.shape + 1, out.shape + 4, cache.shape + 1),
             "out: expected dims [M, S, Nk, D] and the dtype of cache");
  check_range(op, "block_ids", ids, 0, cache.shape[0]);
  parallel_for(ids.size, grain_of(cache), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) copy_view(op, slice(out, m), slice(cache, ids[m]));
  });
}

void scatter_blocks(TensorView cache, TensorView blocks, TensorView block_ids) {
  const char* op = "scatter_blocks";
  const Indices ids = indices_of(op, "block_ids", block_ids);
  PYVT_CHECK(op,
             blocks.rank == 4 && cache.rank == 4 && blocks.shape[0] == ids.size &&
                 blocks.dtype == cache.dtype &&
                 std::equal(blocks.shape + 1, blocks.shape + 4, cache.shape + 1),
             "blocks: expected dims [M, S, Nk, D] and the dtype of cache");
  check_range(op, "block_ids", ids, 0, cache.shape[0]);
  parallel_for(ids.size, grain_of(cache), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) copy_view(op, slice(cache, ids[m]), slice(blocks, m));
  });
}

}  // namespace pyvt::cpu
