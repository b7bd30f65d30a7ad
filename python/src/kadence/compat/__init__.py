"""Other libraries' functions for Kimi Delta Attention, with their signatures, on Kadence's operators.

Every argument is either honoured or refused by name; nothing is dropped. Results are the same quantities (layouts, dtypes,
which state sits where), not the same bits.
"""

from . import fla, flashinfer, flashkda

__all__ = ['fla', 'flashinfer', 'flashkda']
