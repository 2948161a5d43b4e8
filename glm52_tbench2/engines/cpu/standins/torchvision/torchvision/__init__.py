"""Stand-in for torchvision, which SGLang imports for image models."""

from glm52_tbench2.engines.cpu.standin import install

install(__name__, __file__, __version__="0.28.0")
