// The grids of the IQ2 and IQ3 formats: code books of small magnitudes, and the signs beside them.
#pragma once

#include <cstdint>

namespace pyvt::cpu {

// Column i of a run is byte i of a number.
struct IqGrids {
  uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];
  uint32_t iq3_xxs[256], iq3_s[512];

  // Bytes of 255 where a bit of the index is set; seven bits stand for eight, whose last makes
  // their number even.
  uint64_t signs[256], signs_of_seven[128];
};

// Expanded at first use.
const IqGrids& iq_grids();

}  // namespace pyvt::cpu
