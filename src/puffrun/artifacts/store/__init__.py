"""Where artifacts lie: names, the lock, the manifest that is the proof, and what is thrown away."""
