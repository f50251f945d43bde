"""The language the parts of Shardtune share: frozen pydantic values, no behaviour beyond validation and rendering.

Imports pydantic and the standard library only, so that every part (and a GPU host without the service) can load it.
"""
