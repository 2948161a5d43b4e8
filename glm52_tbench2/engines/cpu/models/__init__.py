"""The models that SGLang looks for here (SGLANG_EXTERNAL_MODEL_PACKAGE), before it imports all."""
