#include "model.h"

#include "error.h"

namespace llmc {

Model::Model(const llmc_config &c, const llmc_options &o)
    : config(c), options(o), lanes(o), batches(c, o, lanes), snapshot(lanes), rounding_now(o.seed), rounding_before(o.seed) {}

void Model::poison(const std::string &message) {
    const std::lock_guard<std::mutex> lock(poison_mutex_);
    if (poisoned_) return;
    poison_message_ = message;
    poisoned_ = true;
}

void Model::require_sound() const {
    if (!poisoned_) return;
    const std::lock_guard<std::mutex> lock(poison_mutex_);
    throw Error(LLMC_DEVICE, "the model can't be used after a device error: " + poison_message_);
}

}  // namespace llmc
