"""Codecs of programs, delegates, values, payloads. All but `payload` import torch. Edits change stage keys."""
