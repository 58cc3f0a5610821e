// sampler.h - draws a token from logits on the host; the same for every backend.
#pragma once
#include <cstdint>

#include "llmc.h"

namespace llmc {

int sample(const float *logits, int vocab, const llmc_sampling &how, uint64_t *state);

}  // namespace llmc
