"""How much do two rows differ, and is that more than rounding explains?"""
