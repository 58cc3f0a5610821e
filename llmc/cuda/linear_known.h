// linear_known.h (CUDA, for linear_tune.cu) - what timing has found, for as long as the process lives and, as
// text, for the next one: a line "key <tab> way <tab> algorithm". The library lets its algorithms be kept as the
// bytes they are, for its own version.
#pragma once
#include <optional>
#include <string>

#include "linear_plan.h"

namespace llmc {

struct Known {
    Way way = Way::LIBRARY;    // of the plan with the epilogue, if there is one
    cublasLtMatmulAlgo_t algo; // of the product that runs; unused when that is our own
};

// Names a use on this lane: device, library version, type, sizes.
std::string known_key(const Lane &, const LinearUse &, cudaDataType_t);
std::optional<Known> known(const std::string &key);
void remember_known(const std::string &key, const Known &);

}  // namespace llmc
