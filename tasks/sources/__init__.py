"""Models by name: builders for models of Hugging Face, timm and torchvision."""
