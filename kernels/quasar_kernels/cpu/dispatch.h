// Which instruction set runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace quasar {

std::vector<const Kernels*> supported();                   // by this CPU, fastest first; scalar is always the last
std::string disagreement(const Kernels& table);            // empty, or the op in which `table` differs from scalar
bool use(const std::string& name);                         // false when this CPU cannot
std::string choose(const char* wanted);                    // picks a checked table; returns what was refused and why, or nothing

}  // namespace quasar
