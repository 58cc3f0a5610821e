// linear.h (CUDA, private) - how linear_choose of ops.h is made: a library handle, algorithms by timing.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "../ops.h"

namespace llmc {

// Makes the lane's handle, which allocates: before any graph is captured.
void linear_prepare(Lane &);

// Runs every use on noise in scratch, with every algorithm the library proposes (8 at most), and keeps the
// fastest for this lane; for GELU and for a bias gradient also tries a kernel of its own. Each proposal
// takes 4 runs or 3 ms, whichever is longer; waits for the lane. A deterministic lane keeps the library's
// first proposal, because timing would pick differently from run to run; each use still runs once, so
// that no kernel is loaded later. Counts for pointers aligned to 16 bytes, as an engine's are. A use that
// does not fit scratch is passed over. Returns a line a use: time of the first proposal and of the choice.
template <class X>
std::string linear_tune(Lane &, const std::vector<LinearUse> &uses, void *scratch, size_t scratch_bytes);
// Scratch for the largest use. With more, copies take turns so that operands come from memory, not from L2.
template <class X>
size_t linear_tune_bytes(const std::vector<LinearUse> &uses);

}  // namespace llmc
