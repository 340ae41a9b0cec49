"""From the BF16 decoder to the W8A8 decoder: calibrate, smooth, rotate, round, fold, save."""

from quasar_lab.quantization.record import read_record
from quasar_lab.quantization.saved_model import largest_error, load_quantized, prepare, quantize

__all__ = ["largest_error", "load_quantized", "prepare", "quantize", "read_record"]
