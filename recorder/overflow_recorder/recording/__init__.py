"""What becomes a frame?"""
