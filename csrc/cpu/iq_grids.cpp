#include "cpu/iq_grids.h"

#include <memory>

#include "cpu/iq_grid_codes.h"

namespace pyvt::cpu {
namespace {

constexpr uint8_t kLevelsOf2[] = {8, 25, 43};
constexpr uint8_t kLevelsOf3Xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t kLevelsOf3S[] = {1, 3, 5, 7, 9, 11, 13, 15};

// Codes of 16 / (bytes of a row) bits, low bits first, to magnitudes.
template <typename Row, int kCount>
void expand(const uint16_t (&codes)[kCount], const uint8_t* levels, Row (&rows)[kCount]) {
  constexpr int kWidth = sizeof(Row), kBits = 16 / kWidth;
  for (int i = 0; i < kCount; ++i) {
    rows[i] = 0;
    for (int j = 0; j < kWidth; ++j) {
      const int code = codes[i] >> (j * kBits) & ((1 << kBits) - 1);
      rows[i] |= static_cast<Row>(levels[code]) << (8 * j);
    }
  }
}

uint64_t mask_of(uint32_t bits) {
  uint64_t mask = 0;
  for (int i = 0; i < 8; ++i) mask |= (bits >> i & 1) * (uint64_t{255} << (8 * i));
  return mask;
}

std::unique_ptr<const IqGrids> make_grids() {
  auto grids = std::make_unique<IqGrids>();
  expand(kIq2XxsCodes, kLevelsOf2, grids->iq2_xxs);
  expand(kIq2XsCodes, kLevelsOf2, grids->iq2_xs);
  expand(kIq2SCodes, kLevelsOf2, grids->iq2_s);
  expand(kIq3XxsCodes, kLevelsOf3Xxs, grids->iq3_xxs);
  expand(kIq3SCodes, kLevelsOf3S, grids->iq3_s);
  for (uint32_t i = 0; i < 256; ++i) grids->signs[i] = mask_of(i);
  for (uint32_t i = 0; i < 128; ++i) {
    const uint32_t is_odd = static_cast<uint32_t>(__builtin_popcount(i)) & 1;
    grids->signs_of_seven[i] = mask_of(i | is_odd << 7);
  }
  return grids;
}

}  // namespace

const IqGrids& iq_grids() {
  static const std::unique_ptr<const IqGrids> grids = make_grids();
  return *grids;
}

}  // namespace pyvt::cpu
