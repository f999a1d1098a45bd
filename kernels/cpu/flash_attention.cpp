#include "kernels/kernels.h"

namespace faultline::cpu {

void flash_attention(const KernelArgs& args) { reference::flash_attention(args); }
void flash_attention_backward(const KernelArgs& args) { reference::flash_attention_backward(args); }

}  // namespace faultline::cpu
