"""What-if questions: how they are asked, what they change in the graph, and how far the answer is to be trusted."""
