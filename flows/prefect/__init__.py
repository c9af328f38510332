"""Everything that imports Prefect: flows, tasks, pages, deployments and servers."""
