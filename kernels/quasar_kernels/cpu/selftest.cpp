// A stand-alone check of the kernels, for machines and emulators without Python: every instruction set of this CPU against plain C++.
//   g++ -std=c++17 -O3 -ffp-contract=off -pthread selftest.cpp dispatch.cpp isa_*.cpp attend.cpp ops.cpp pack.cpp pool.cpp -o selftest
#include <cstdio>

#include "dispatch.h"

int main() {
  int wrong = 0;
  for (const quasar::Kernels* table : quasar::supported()) {
    const std::string op = quasar::disagreement(*table);
    std::printf("%s: %s%s\n", table->name, op.empty() ? "agrees with plain C++" : "disagrees in ", op.c_str());
    wrong += !op.empty();
  }
  return wrong;
}
