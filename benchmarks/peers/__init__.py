"""Those who answer the same documents, each as a fresh process."""
