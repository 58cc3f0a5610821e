// p(i) ~ exp((logit_i - max) / temperature): subtracting the maximum keeps the largest term at 1, so
// nothing overflows. top_k keeps the k largest, top_p then the fewest whose probabilities reach p.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "error.h"

namespace llmc {

namespace {

// SplitMix64, its top 53 bits as a double in [0, 1).
double next_uniform(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return double(z >> 11) * 0x1p-53;
}

}  // namespace

int sample(const float *logits, int vocab, const llmc_sampling &how, uint64_t *state) {
    if (vocab < 1) fail(LLMC_INVALID, "vocab is %d, expected at least 1", vocab);
    if (!(how.temperature >= 0) || std::isinf(how.temperature)) fail(LLMC_INVALID, "temperature is %g, expected 0 (the largest logit) or more", how.temperature);
    if (how.top_k < 0) fail(LLMC_INVALID, "top_k is %d, expected 0 (off) or more", how.top_k);
    if (!(how.top_p > 0 && how.top_p <= 1)) fail(LLMC_INVALID, "top_p is %g, expected more than 0 and at most 1 (off)", how.top_p);
    int best = -1;
    for (int i = 0; i < vocab; i++) {
        if (std::isnan(logits[i])) fail(LLMC_INVALID, "logit %d of %d is NaN", i, vocab);
        if (std::isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
        if (logits[i] == INFINITY) fail(LLMC_INVALID, "logit %d of %d is infinite", i, vocab);
    }
    if (best < 0) fail(LLMC_INVALID, "none of the %d logits is finite", vocab);
    if (how.temperature == 0) return best;

    // Single precision carries the exponentials: their relative error of 1e-7 is far below what a draw can show.
    const float top = logits[best], scale = 1.0f / how.temperature;
    const auto weight = [&](int i) { return std::exp((logits[i] - top) * scale); };
    const double u = next_uniform(state);
    if (how.top_k == 0 && how.top_p == 1) {
        std::vector<float> weights(static_cast<size_t>(vocab));
        double total = 0;
        for (int i = 0; i < vocab; i++) total += weights[size_t(i)] = weight(i);
        double left = u * total;
        int chosen = best;  // rounding may leave a remainder after the last positive weight
        for (int i = 0; i < vocab; i++) {
            if (weights[size_t(i)] <= 0) continue;
            chosen = i;
            if ((left -= double(weights[size_t(i)])) < 0) break;
        }
        return chosen;
    }

    std::vector<int> kept(static_cast<size_t>(vocab));
    std::iota(kept.begin(), kept.end(), 0);
    // Ties go to the lower id, so that the kept set does not depend on the library's sort.
    const auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    if (how.top_k > 0 && how.top_k < vocab) {
        std::nth_element(kept.begin(), kept.begin() + how.top_k - 1, kept.end(), likelier);
        kept.resize(size_t(how.top_k));
    }
    std::sort(kept.begin(), kept.end(), likelier);
    std::vector<float> weights;
    weights.reserve(kept.size());
    double total = 0;
    for (int i : kept) weights.push_back(weight(i)), total += double(weights.back());
    if (how.top_p < 1) {
        double reached = 0;
        size_t n = 0;
        while (n < kept.size() && reached < how.top_p * total) reached += double(weights[n++]);
        kept.resize(n);
        total = reached;
    }
    double left = u * total;
    for (size_t i = 0; i < kept.size(); i++) {
        if ((left -= double(weights[i])) < 0) return kept[i];
    }
    return kept.back();
}

}  // namespace llmc
