"""Reading text with gradients: a recognition model that ships as an ONNX graph, run by torch."""
