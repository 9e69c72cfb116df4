"""How is a module, a gradient, an optimizer step noticed?"""
