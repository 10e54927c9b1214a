"""Is an artifact fresh? Its inputs, tools and outputs, and in words why it is not."""
