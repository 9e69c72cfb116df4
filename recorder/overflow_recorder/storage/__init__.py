"""Where do frames go?"""
